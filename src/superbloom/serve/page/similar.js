// Similar names on demand: what opens asks the server once, and each name that comes can be added to the context.

import { el, nameOf, number, plural, spoken } from "./dom.js";

// find() → the answer of /v1/similar;  fail(error, again) → whether the page has shown the error;  say(line) is heard.
export function similarOf(label, { find, add, fail, say }) {
  const found = el("div", {});
  const ask = async () => {
    found.replaceChildren(el("p", { class: "soft small" }, "Looking …"));
    try {
      const { neighbours, source, note } = await find();
      found.replaceChildren(...listOf(neighbours, source, note, add));
      say(`${plural(neighbours.length, "similar name")}.`);
    } catch (error) {
      found.replaceChildren();
      if (!fail(error, ask)) found.replaceChildren(el("p", { class: "small warn" }, error.message));
    }
  };
  const details = el("details", { class: "similar" }, el("summary", {}, label), found);
  details.addEventListener("toggle", () => details.open && !found.hasChildNodes() && ask());
  return details;
}

function listOf(neighbours, source, note, add) {
  const scored = source === "pairs"; // other scores are logarithms, which say nothing here
  const row = ({ name, score }) =>
    el(
      "li",
      {},
      el(
        "button",
        {
          type: "button",
          class: "quiet",
          title: scored ? `cosine ${number(score)}` : null,
          "aria-label": `Add ${spoken(name)} to the context`,
          onclick: () => add(name),
        },
        nameOf(name),
      ),
    );
  return [
    el("ol", { class: "row", role: "list" }, neighbours.map(row)),
    note
      ? el("p", { class: "soft small" }, `${note[0].toUpperCase()}${note.slice(1)}.`)
      : el("p", { class: "soft small" }, "Names that stood near in training rows, however frequent they are."),
  ];
}
