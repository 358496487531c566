// The answers as lists with bars, one list per mask. An answer opens to show its reasons.

import { meaningOf } from "./certificate.js";
import { MASK, el, nameOf, percent, plural, spoken } from "./dom.js";
import { whyOf } from "./why.js";

export class Answers {
  // add: null where answers may not be added to the context;  text: whether the context was one;
  // prior: whether the model weighs in how frequent names are;  similar(name): an element, or null.
  constructor(node, { open, add, point, text, prior, similar }) {
    Object.assign(this, { node, open, add, point, text, prior, similar });
    this.rows = [];
  }

  // answer: as the server gave it; why: the answer that is open, {mask, name} or null.
  show(answer, why) {
    const focus = document.activeElement?.closest("[data-key]")?.dataset.key;
    this.rows = [];
    const several = answer.masks.length > 1;
    this.node.replaceChildren(
      ...(this.text ? [this.asRead(answer)] : []),
      ...answer.masks.map((mask, i) =>
        el(
          "section",
          { "aria-labelledby": `answers-${i}` },
          el("h2", { id: `answers-${i}` }, several ? ["Answers for ", this.placeOf(answer.context, i)] : "Answers"),
          this.list(mask, i),
        ),
      ),
    );
    this.setOpen(why);
    if (focus) this.refocus(focus);
  }

  asRead({ context, unread }) {
    return el(
      "div",
      { class: "read" },
      el("span", { class: "caption", id: "read-as" }, "Read as"),
      el(
        "ul",
        { class: "entries", role: "list", "aria-labelledby": "read-as" },
        context.map((name) =>
          el("li", { class: name === null ? "entry mask" : "entry" }, name === null ? MASK : nameOf(name)),
        ),
      ),
      unread?.length > 0 &&
        el(
          "p",
          { class: "small warn" },
          "Not read: ",
          unread.map((part, i) => [i > 0 && ", ", nameOf(part)]),
        ),
    );
  }

  // Which of several masks: by its neighbours, as a reader would point at it.
  placeOf(context, mask) {
    const place = context.flatMap((name, i) => (name === null ? [i] : []))[mask];
    const near = (at) => (at < 0 || at >= context.length ? null : context[at] === null ? MASK : nameOf(context[at]));
    const [before, after] = [near(place - 1), near(place + 1)];
    return el(
      "span",
      { class: "place" },
      before ?? "",
      before && " ",
      el("b", {}, `${MASK} ${mask + 1}`),
      after && " ",
      after ?? "",
    );
  }

  list(mask, i) {
    if (!mask.predictions.length) return el("p", { class: "soft" }, "No name may be answered here.");
    const most = Math.max(...mask.predictions.map(({ probability }) => probability));
    return el(
      "ol",
      { class: "list" },
      mask.predictions.map((prediction, rank) => this.row(mask, i, prediction, rank, most)),
    );
  }

  row(mask, i, prediction, rank, most) {
    const { name, probability } = prediction;
    const id = `why-${i}-${rank}`;
    const panel = el("div", { id, class: "why", hidden: true });
    const button = el(
      "button",
      {
        type: "button",
        class: "answer",
        "aria-expanded": "false",
        "aria-controls": id,
        "data-key": `open ${i} ${rank} ${name}`,
        onclick: () => this.open(button.getAttribute("aria-expanded") === "true" ? null : { mask: i, name }),
        onpointerenter: () => this.point(i, name),
        onpointerleave: () => this.point(i, null),
        onfocus: () => this.point(i, name),
        onblur: () => this.point(i, null),
      },
      el("span", { class: "rank soft" }, String(rank + 1)),
      nameOf(name),
      el("span", { class: "chance" }, percent(probability)),
      el(
        "span",
        { class: "bar", "aria-hidden": "true" },
        el("span", { vars: { width: `${(100 * probability) / most}%` } }),
      ),
    );
    const fill = () => whyOf(prediction, mask.why?.[rank], mask, this.prior, this.similar(name));
    this.rows.push({ mask: i, name, button, panel, fill });
    return el(
      "li",
      {},
      el(
        "div",
        { class: "line" },
        button,
        this.add &&
          el(
            "button",
            {
              type: "button",
              class: "plus",
              "aria-label": `Add ${spoken(name)} to the context`,
              title: "Add to the context",
              "data-key": `add ${i} ${rank} ${name}`,
              onclick: () => this.add(name),
            },
            "+",
          ),
      ),
      panel,
    );
  }

  setOpen(why) {
    for (const { mask, name, button, panel, fill } of this.rows) {
      const open = why !== null && why.mask === mask && why.name === name;
      button.setAttribute("aria-expanded", String(open));
      if (open && panel.hidden) panel.replaceChildren(fill());
      panel.hidden = !open;
    }
  }

  // The list was rebuilt: the focus goes to the same answer, or else to the one of the same rank.
  refocus(key) {
    const [what, mask, rank, ...name] = key.split(" ");
    const now = [...this.node.querySelectorAll("[data-key]")];
    const like = (test) => now.find(({ dataset }) => test(dataset.key.split(" ")));
    const same = like(([w, m, , ...n]) => w === what && m === mask && n.join(" ") === name.join(" "));
    (same ?? like(([w, m, r]) => w === what && m === mask && r === rank) ?? now[0])?.focus();
  }
}

// One sentence for those who hear the page: the best answers, and what is proven about them.
export function summaryOf({ masks }) {
  return masks
    .map((mask, i) => {
      const { predictions } = mask;
      const best = predictions
        .slice(0, 3)
        .map(({ name, probability }) => `${spoken(name, 40)} ${percent(probability)}`);
      const which = masks.length > 1 ? ` for mask ${i + 1}` : "";
      return `${plural(predictions.length, "answer")}${which}: ${best.join(", ")}. ${meaningOf(mask)}`;
    })
    .join(" ");
}
