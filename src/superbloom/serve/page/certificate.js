// What proves the answers, or what is missing for that: a sentence, the picture, and the same in numbers.

import { apart, count, el, factsOf, nameOf, plural, precise, spoken, tableOf } from "./dom.js";
import { FIRST_BEAM } from "./options.js";
import { Plane, kindOf } from "./plane.js";

const MOST_ROWS = 50;

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const list = (items) => (new Set(items).size === 1 ? items[0] : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`);

// What the word proves, and no more: it is about the model, not about the world. Models that rank by the paper's sum
// come without a certificate.
export function meaningOf({ certified, certificate }) {
  const what = certificate === null ? "score" : "probability";
  return certified
    ? `Certified: no other allowed name has a higher ${what} under this model.`
    : `Not certified: another name may have a higher ${what} under this model.`;
}

// What all hashes and the memory add: the probability of a point.
const total = ({ values, memory }) => sum(values) + memory;

// Whether a memory adds to some of the points. The search looks at these names in whatever bucket they are.
const remembers = ({ points }) => points.some(({ memory }) => memory !== 0);

const allScored = ({ edges }) => !edges || edges.some((edge) => edge === null);

// Whether what was opened proves the answers; with every id scored they are proven even if it does not.
const enough = ({ certified, certificate: { kth, bound } }) =>
  certified && (kth === null || bound === null || bound <= kth);

// One sentence, with the numbers, of how it is proven.
export function proofOf(mask) {
  const { certified, certificate, search, predictions } = mask;
  const { kth, bound, opened } = certificate;
  const ids = count(search.num_ids);
  const hashes = opened.length === 1 ? "the hash" : "each hash";
  const buckets = `${list(opened.map(count))} of the ${count(certificate.num_buckets)} buckets of ${hashes}`;
  const all = search.scored >= search.num_ids;
  if (allScored(certificate) || (all && (kth === null || !enough(mask)))) {
    return `All ${ids} ids were scored, so none is missing.`;
  }
  const was = opened.every((many) => many === 1) ? "was" : "were";
  const looked = `${buckets} ${was} opened and ${count(search.scored)} of ${ids} ids scored`;
  if (kth === null) {
    const few = `${looked}, with ${predictions.length || "no"} answers`;
    if (certified) return `${few}; no other id may be answered.`;
    return `${few}; any id in the unopened corner could still be one.`;
  }
  const [most, last] = apart(bound, kth);
  const other = `an id in no opened bucket${remembers(certificate) ? " that the memory does not bring" : ""}`;
  const rest = `${other} has at most ${most}, the last answer has ${last}`;
  if (all) return `All ${ids} ids were scored, but ${buckets} are proof enough: ${rest}.`;
  if (certified) return `${looked}; ${rest}, so none is missing.`;
  return `${looked}; ${other} may have up to ${most}, more than the last answer's ${last}.`;
}

// The pair of hashes that is drawn. With more than two, the others count with their edges: what an id in no opened
// bucket may have there at most.
export function slice(certificate, pair) {
  const open = allScored(certificate);
  const hidden = open && certificate.opened.length > 2; // with others that have no edge, there is no line in this plane
  const others = open ? [] : certificate.edges.filter((_, hash) => !pair.includes(hash));
  return {
    points: certificate.points.map((point) => ({ ...point, x: point.values[pair[0]], y: point.values[pair[1]] })),
    edges: open ? null : pair.map((hash) => certificate.edges[hash]),
    line: certificate.kth === null || hidden ? null : Math.max(0, certificate.kth - sum(others)),
    bound: open ? null : certificate.bound - sum(others),
    labels: pair.map((hash) => `what hash ${hash + 1} adds to the probability`),
  };
}

export class Certificate {
  constructor(node, { tryBeam }) {
    Object.assign(this, { node, tryBeam });
    this.mask = 0;
    this.pair = null; // of hashes, that is drawn
    this.frame = el("div", { class: "frame" });
    this.others = el("p", { class: "small soft" });
    new ResizeObserver(() => this.frame.clientWidth !== this.width && this.draw()).observe(this.frame);
  }

  show(masks) {
    this.masks = masks;
    this.mask = Math.min(this.mask, masks.length - 1);
    const mask = masks[this.mask];
    if (!mask) return this.node.replaceChildren();
    const { certificate, certified } = mask;
    const head = [
      el(
        "h2",
        { id: "proof" },
        "Certificate ",
        el("span", { class: certified ? "badge" : "badge doubt" }, certified ? "certified" : "not certified"),
      ),
      el("p", { class: "meaning" }, meaningOf(mask)),
    ];
    if (!certificate) {
      const sum = "This model ranks by the sum of the log-probabilities of a name's tokens, as in the paper. ";
      return this.node.replaceChildren(
        ...head,
        el("p", { class: "small soft" }, sum, "The picture needs one that ranks by probability."),
      );
    }
    const inCorner = ({ opened, values }) => opened && values.every((value, hash) => value <= certificate.edges[hash]);
    const hashes = certificate.opened.length;
    this.pair ??= hashes === 1 ? [0] : [0, 1];
    // Best first, so that the slider walks down from the best answer.
    this.points = certificate.points.toSorted((a, b) => total(b) - total(a));
    const once = Math.min(FIRST_BEAM, certificate.num_buckets);
    this.said = el("output", { class: "said small", for: "walk" }, this.hint());
    this.walk = el("input", {
      id: "walk",
      type: "range",
      min: "0",
      max: String(Math.max(0, this.points.length - 1)),
      value: "0",
      oninput: () => this.mark(Number(this.walk.value)),
    });
    this.walk.setAttribute("aria-valuetext", this.points.length ? this.describe(0) : "no points");
    this.node.replaceChildren(
      ...[
        ...head,
        el("p", { class: "proof" }, proofOf(mask)),
        el("p", { class: "small soft" }, "This says nothing about whether the answers are right in the world."),
        this.choices(masks, hashes),
        el(
          "figure",
          { "aria-labelledby": "proof" },
          this.frame,
          this.legend(certificate),
          this.others,
          el("label", { for: "walk", class: "small soft" }, "Walk through the points, best first"),
          this.walk,
          this.said,
        ),
        !allScored(certificate) &&
          this.points.some(inCorner) &&
          el(
            "p",
            { class: "small soft" },
            "Opened ids in the corner are in a probable bucket but get a small share of it.",
          ),
        allScored(certificate) &&
          certificate.num_buckets > once &&
          el(
            "p",
            { class: "small soft" },
            "With so few ids that costs less than a search. ",
            el(
              "button",
              { type: "button", class: "link", onclick: () => this.tryBeam(once) },
              `See what ${once} buckets per hash would prove`,
            ),
          ),
        remembers(certificate) &&
          el(
            "p",
            { class: "small soft" },
            "The axes show what the network adds, with its weight. The memory adds the rest of a probability, so answers ",
            "may lie below the line. The names that the memory brings are compared one by one; the corner is about all ",
            "others.",
          ),
        this.numbers(mask),
      ].filter(Boolean),
    );
    this.draw();
  }

  choices(masks, hashes) {
    const choose = (label, options, chosen, act) => {
      const select = el(
        "select",
        { onchange: () => act(Number(select.value)) },
        options.map((text, i) => el("option", { value: i, selected: i === chosen }, text)),
      );
      return el("label", { class: "check" }, label, select);
    };
    const pairs = [];
    for (let a = 0; a < hashes; a += 1) for (let b = a + 1; b < hashes; b += 1) pairs.push([a, b]);
    const parts = [];
    if (masks.length > 1) {
      parts.push(
        choose(
          "Of mask",
          masks.map((_, i) => String(i + 1)),
          this.mask,
          (i) => {
            this.mask = i;
            this.show(this.masks);
          },
        ),
      );
    }
    if (pairs.length > 1) {
      const now = pairs.findIndex(([a, b]) => a === this.pair[0] && b === this.pair[1]);
      parts.push(
        choose(
          "Hashes",
          pairs.map(([a, b]) => `${a + 1} and ${b + 1}`),
          now,
          (i) => {
            this.pair = pairs[i];
            this.draw();
          },
        ),
      );
    }
    return parts.length ? el("div", { class: "row" }, parts) : null;
  }

  draw() {
    const mask = this.masks?.[this.mask];
    this.width = this.frame.clientWidth;
    if (!mask?.certificate || !this.width) return;
    const drawn = slice({ ...mask.certificate, points: this.points }, this.pair);
    this.plane = new Plane({ ...drawn, enough: enough(mask), title: `Plane of ids. ${proofOf(mask)}` }, this.width);
    this.plane.node.addEventListener("pointermove", (event) => this.mark(this.plane.nearest(event)));
    this.plane.node.addEventListener("pointerdown", (event) => this.mark(this.plane.nearest(event)));
    this.plane.node.addEventListener("pointerleave", () => this.mark(-1));
    this.frame.replaceChildren(this.plane.node);
    const most = (drawn.edges ? mask.certificate.edges : []).map(
      (edge, hash) => `${precise(edge)} from hash ${hash + 1}`,
    );
    const rest = most.filter((_, hash) => !this.pair.includes(hash)).join(", ");
    this.others.hidden = !rest || drawn.line === null;
    const line = "The line is what an unopened id would need from these two, with the most that the others can add";
    this.others.textContent = `${line}: ${rest}.`;
  }

  hint() {
    return "Point at an id to see its name.";
  }

  describe(i) {
    const { name, values, memory, opened } = this.points[i];
    const seen = opened ? "opened" : "brought by the memory";
    const what = { answer: "an answer", out: "left out", seen, unseen: "not opened" }[kindOf(this.points[i])];
    const terms = values.map((value) => precise(value));
    if (memory !== 0) terms.push(`${precise(memory)} of the memory`);
    const made = terms.join(" + ");
    return `${spoken(name)}: ${terms.length > 1 ? `${made} = ${precise(total(this.points[i]))}` : made}, ${what}`;
  }

  mark(i) {
    this.plane?.mark(i);
    this.said.textContent = i < 0 ? this.hint() : this.describe(i);
    if (i >= 0) {
      this.walk.value = String(i);
      this.walk.setAttribute("aria-valuetext", this.describe(i));
    }
  }

  // An answer of the list was pointed at.
  point(mask, name) {
    if (mask !== this.mask || !this.points) return;
    this.mark(name === null ? -1 : this.points.findIndex((point) => point.answer && point.name === name));
  }

  legend(certificate) {
    const key = (kind, text) => el("li", {}, el("span", { class: `key key-${kind}`, "aria-hidden": "true" }), text);
    const open = allScored(certificate);
    const many = certificate.opened.length > 2;
    const plain = many ? "enough to get in" : "as probable as the last answer";
    const level = remembers(certificate) ? "enough without the memory" : plain;
    return el(
      "ul",
      { class: "legend small soft", role: "list" },
      key("answer", "answer"),
      key("seen", open ? "scored" : "opened"),
      !open && key("unseen", "not opened"),
      certificate.points.some((point) => point.excluded) && key("out", "left out"),
      certificate.kth !== null && !(open && many) && key("level", level),
      !open && key("closed", "unopened corner"),
    );
  }

  // The facts of the picture, for those who do not see it.
  numbers({ certificate, predictions }) {
    const { edges, opened, kth, bound, num_buckets: buckets } = certificate;
    const open = allScored(certificate);
    const memory = remembers(certificate);
    const openedText = (many, j) =>
      open
        ? `all ${count(buckets)} buckets opened`
        : `${plural(many, "bucket")} opened; any other adds at most ${precise(edges[j])}`;
    const answers = this.points.filter(({ answer }) => answer).slice(0, MOST_ROWS);
    return el(
      "details",
      {},
      el("summary", {}, "The picture in numbers"),
      factsOf([
        ...opened.map((many, j) => [`Hash ${j + 1}`, openedText(many, j)]),
        ["An unopened id has at most", open ? "there is none" : precise(bound)],
        [`The last of ${count(predictions.length)} answers has`, kth === null ? "anything gets in" : precise(kth)],
      ]),
      tableOf(
        "What is added to the probabilities of the answers",
        ["Answer", ...opened.map((_, j) => `Hash ${j + 1} adds`), ...(memory ? ["Memory adds"] : []), "Probability"],
        answers.map((point) => {
          const terms = [...point.values, ...(memory ? [point.memory] : []), total(point)];
          return [nameOf(point.name), ...terms.map((value) => precise(value))];
        }),
      ),
    );
  }
}
