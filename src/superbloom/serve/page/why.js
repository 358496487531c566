// Why an answer is one: what it stood beside in training rows, which similar rows have it, what its probability is made
// of, who shares its buckets, and which of the context it needs.

import { count, el, nameOf, number, percent, plural, precise, signed, tableOf } from "./dom.js";

const STRONGEST = 12; // of the context are shown; the others on demand

// What the parts of the memory are, by their names in the answer of the server (memory/parts.py).
const PARTS = {
  network: "the network",
  pairs: "stood near names of the context",
  "pairs squared": "stood near them most often",
  rows: "is in similar rows",
  places: "is at this place in similar rows",
  repeats: "repeats the context",
  "row repeats": "similar rows repeat it as well",
};

// prior: whether the model weighs in how frequent names are;  similar: an element to end with, or null.
export function whyOf({ name, probability }, why, mask, prior, similar) {
  if (!why) return el("p", { class: "soft" }, "The server did not explain this answer.");
  const remembers = Object.keys(why.parts).length > 1;
  return el(
    "div",
    {},
    why.beside.length > 0 && [el("h3", {}, "Beside names of the context in training rows"), besideOf(why.beside)],
    why.similar_rows.length > 0 && [el("h3", {}, "In similar training rows"), similarRowsOf(why.similar_rows)],
    el("h3", {}, "Where the probability comes from"),
    remembers && contributionsOf(probability, why.parts),
    remembers && el("h3", {}, "What the network says"),
    hashesOf(probability, why, mask.certificate?.num_buckets, remembers),
    el("h3", {}, "Who shares its buckets"),
    el("p", { class: "soft small" }, sharingOf(why, prior)),
    el(
      "ul",
      { class: "buckets", role: "list" },
      why.tokens.map((token) => bucketOf(name, token)),
    ),
    el("h3", {}, "What it depends on"),
    dependenceOf(why.depends_on),
    similar,
  );
}

const barOf = (part) =>
  el("span", { class: "bar", "aria-hidden": "true" }, el("span", { vars: { width: `${100 * Math.min(1, part)}%` } }));

// What the network and each part of the memory add, the largest first, as shares of the probability.
function contributionsOf(probability, parts) {
  const added = Object.entries(parts).filter(([, value]) => value > 0);
  added.sort(([, a], [, b]) => b - a);
  return el(
    "ul",
    { class: "shares contributions", role: "list" },
    added.map(([part, value]) =>
      el(
        "li",
        { class: part === "network" ? "own" : null },
        el("span", {}, PARTS[part] ?? part),
        el("span", { class: "number" }, percent(value / probability)),
        barOf(value / probability),
      ),
    ),
  );
}

const DIRECTIONS = [
  [0.6, "mostly follows it"],
  [0.4, "before and after it"],
  [0, "mostly precedes it"],
];

// The elements of the context that the answer stood near, those of most rows first. A model that remembers no rows
// knows only how strong a pair is, and one that keeps no such pair only the rows.
function besideOf(pairs) {
  const row = ({ name, rows, nearest, share, follows }) =>
    el(
      "li",
      {},
      el(
        "span",
        {},
        "beside ",
        nameOf(name),
        rows > 0 && ` in ${plural(rows, "row")}, nearest distance ${count(nearest)}`,
      ),
      share !== null && [
        el("span", { class: "number" }, percent(share)),
        barOf(share),
        el("span", { class: "soft small" }, DIRECTIONS.find(([least]) => follows >= least)[1]),
      ],
    );
  const ordered = pairs.toSorted(
    (a, b) => b.rows - a.rows || a.nearest - b.nearest || b.share - a.share || a.place - b.place,
  );
  const rest = ordered.slice(STRONGEST);
  const list = (some) => el("ul", { class: "shares beside", role: "list" }, some.map(row));
  return el(
    "div",
    {},
    el(
      "p",
      { class: "soft small" },
      "Rows in which both stand at most 10 places apart. The bar is how much of what stood near the element was this ",
      "answer; near counts for more.",
    ),
    list(ordered.slice(0, STRONGEST)),
    rest.length > 0 && el("details", {}, el("summary", {}, plural(rest.length, "more element")), list(rest)),
  );
}

// The remembered rows that are most similar to the context and have the answer, by their keys.
function similarRowsOf(rows) {
  const row = ({ key, similarity, shared }) =>
    el(
      "li",
      {},
      key === null ? el("span", { class: "soft" }, "a row") : nameOf(key),
      el("span", { class: "number" }, number(similarity)),
      barOf(similarity),
      el(
        "span",
        { class: "soft small" },
        "shares ",
        shared.slice(0, STRONGEST).map((name, i) => [i > 0 && ", ", nameOf(name)]),
        shared.length > STRONGEST && ` and ${count(shared.length - STRONGEST)} more`,
      ),
    );
  return el("ul", { class: "shares similar-rows", role: "list" }, rows.map(row));
}

// A hash gives its bucket a probability, and the name gets a share of it. The mean over the hashes is the answer's, or
// with a memory what the network gives, which then counts by its weight.
function hashesOf(probability, { tokens, parts }, buckets, remembers) {
  const rows = tokens.map(({ hash, bucket, log_prob: value, rank, share }) => [
    [
      `Hash ${hash + 1}`,
      el(
        "span",
        { class: "soft small" },
        `bucket ${count(bucket)}, number ${count(rank)}${buckets ? ` of ${count(buckets)}` : ""}`,
      ),
    ],
    precise(Math.exp(value)),
    precise(share),
    precise(Math.exp(value) * share),
  ]);
  const mean = tokens.reduce((sum, { log_prob: value, share }) => sum + Math.exp(value) * share, 0) / tokens.length;
  const weight = mean > 0 ? `× ${percent(Math.min(1, parts.network / mean))}, its weight` : "× its weight";
  const result = tokens.length === 1 ? "Probability" : "Mean: the probability";
  const totals = remembers
    ? [[tokens.length === 1 ? "Product" : "Mean", "", "", precise(mean)], [weight, "", "", precise(parts.network)]]
    : [[result, "", "", precise(probability)]];
  return tableOf(
    remembers ? "What the network says" : "Where the probability comes from",
    ["", "bucket", "× share", "= product"],
    [...rows, ...totals.map((cells) => ({ cells, props: { class: "total" } }))],
    { class: "parts" },
  );
}

function sharingOf({ tokens, prior: surplus }, prior) {
  const divided = "A hash divides the probability of a bucket among the names in it";
  const other = tokens.length > 2 ? "what the other hashes say about them" : "what the other hash says about them";
  const others = tokens.length > 1 ? `by ${other} and ` : "";
  if (!prior) return `${divided}, ${others || "evenly: "}all names count as equally frequent.`;
  const frequent = "by the prior: how frequent a name is among its bucket mates";
  return `${divided}, ${others}${frequent}. The logarithm of the prior is ${signed(surplus)} for this name.`;
}

// The members of a bucket, the largest share first.
function bucketOf(name, { hash, bucket, token, members, share, mates, mate_shares: shares }) {
  const known = [{ name, share, own: true }, ...mates.map((mate, i) => ({ name: mate, share: shares[i] }))];
  known.sort((a, b) => b.share - a.share);
  const more = members - known.length;
  const rest = Math.max(0, 1 - known.reduce((sum, part) => sum + part.share, 0));
  const row = (label, part, props = {}) =>
    el(
      "li",
      props,
      label,
      el("span", { class: "number" }, precise(part, 2)),
      el("span", { class: "bar", "aria-hidden": "true" }, el("span", { vars: { width: `${100 * part}%` } })),
    );
  return el(
    "li",
    {},
    el(
      "span",
      { class: "soft small" },
      `Hash ${hash + 1}, bucket ${count(bucket)} (token ${count(token)}, ${plural(members, "name")})`,
    ),
    el(
      "ul",
      { class: "shares", role: "list" },
      known.map((member) => row(nameOf(member.name), member.share, { class: member.own ? "own" : null })),
      more > 0 && row(el("span", { class: "soft" }, `${count(more)} more`), rest),
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
        el("li", {}, nameOf(name), el("span", { class: "number" }, timesOf(difference)), diverging(difference, most)),
      ),
    );
  const rest = parts.filter((part) => !strongest.has(part));
  return el(
    "div",
    {},
    el(
      "p",
      { class: "soft small" },
      "What each element of the context does to the probability: × multiplies it, so the answer needs the element; ",
      "÷ divides it, so the element speaks against the answer.",
    ),
    bars(parts.filter((part) => strongest.has(part))),
    rest.length > 0 && el("details", {}, el("summary", {}, `${plural(rest.length, "more element")}`), bars(rest)),
  );
}

// A difference of logarithms as a factor: × 3.20, ÷ 1.05.
function timesOf(difference) {
  const factor = Math.exp(Math.abs(difference));
  const digits = factor < 10 ? 2 : 1;
  const shown = factor < 100 ? factor.toFixed(digits) : factor < 1e6 ? count(Math.round(factor)) : "over 10⁶";
  return `${difference >= 0 ? "×" : "÷"} ${shown}`;
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
