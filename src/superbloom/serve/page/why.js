// Why an answer is one: what its score is made of, who shares its buckets, and which of the context it needs.

import { count, el, nameOf, number, plural, signed } from "./dom.js";

const STRONGEST = 12; // of the context are shown; the others on demand

export function whyOf({ score }, why, mask) {
  if (!why) return el("p", { class: "soft" }, "The server did not explain this answer.");
  return el(
    "div",
    {},
    el("h3", {}, "How the score adds up"),
    sumOf(score, why, mask.certificate?.num_buckets),
    el("h3", {}, "Who shares its buckets"),
    el("ul", { class: "mates", role: "list" }, why.tokens.map(matesOf)),
    el("h3", {}, "What it depends on"),
    dependenceOf(why.depends_on),
  );
}

function sumOf(score, { tokens, prior }, buckets) {
  const parts = [...tokens.map((token) => token.log_prob), prior];
  const most = Math.max(...parts.map(Math.abs), 1e-9);
  const row = (label, value, note) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, label, note && el("span", { class: "soft small" }, ` ${note}`)),
      el("td", { class: "number" }, signed(value)),
      el("td", { class: "track" }, diverging(value, most)),
    );
  return el(
    "table",
    { class: "sum" },
    el(
      "thead",
      { class: "heard" },
      el("tr", {}, el("th", { scope: "col" }, "part"), el("th", { scope: "col" }, "adds"), el("td", {})),
    ),
    el(
      "tbody",
      {},
      tokens.map(({ hash, bucket, log_prob: value, rank }) =>
        row(
          `Hash ${hash + 1}, bucket ${count(bucket)}`,
          value,
          `log-probability; number ${count(rank)}${buckets ? ` of ${count(buckets)}` : ""}`,
        ),
      ),
      row("Prior", prior, "how frequent the name is among its bucket mates"),
    ),
    el(
      "tfoot",
      {},
      el("tr", {}, el("th", { scope: "row" }, "Score"), el("td", { class: "number" }, number(score)), el("td", {})),
    ),
  );
}

function matesOf({ hash, bucket, token, members, mates }) {
  const more = members - 1 - mates.length;
  return el(
    "li",
    {},
    el(
      "span",
      { class: "soft small" },
      `Hash ${hash + 1}, bucket ${count(bucket)} (token ${count(token)}, ${plural(members, "member")})`,
    ),
    el(
      "span",
      { class: "mate-names" },
      mates.length ? mates.map((mate) => el("span", { class: "entry" }, nameOf(mate))) : "nobody else",
      more > 0 && el("span", { class: "soft small" }, `and ${count(more)} more`),
    ),
  );
}

function dependenceOf(parts) {
  if (!parts?.length) return el("p", { class: "soft" }, "There is nothing in the context to depend on.");
  const most = Math.max(...parts.map(({ difference }) => Math.abs(difference)), 1e-9);
  const strongest = new Set(
    parts.toSorted((a, b) => Math.abs(b.difference) - Math.abs(a.difference)).slice(0, STRONGEST),
  );
  const bars = (some) =>
    el(
      "ul",
      { class: "needs", role: "list" },
      some.map(({ name, difference }) =>
        el("li", {}, nameOf(name), el("span", { class: "number" }, signed(difference)), diverging(difference, most)),
      ),
    );
  const rest = parts.filter((part) => !strongest.has(part));
  return el(
    "div",
    {},
    el(
      "p",
      { class: "soft small" },
      "How much the score falls without it: + the answer needs it, − it speaks against the answer.",
    ),
    bars(parts.filter((part) => strongest.has(part))),
    rest.length > 0 && el("details", {}, el("summary", {}, `${plural(rest.length, "more element")}`), bars(rest)),
  );
}

// A bar from the middle: to the right what adds, to the left what takes away.
function diverging(value, most) {
  const width = `${(50 * Math.abs(value)) / most}%`;
  return el(
    "span",
    { class: "diverging", "aria-hidden": "true" },
    el("span", { class: value >= 0 ? "adds" : "takes", vars: { width } }),
  );
}
