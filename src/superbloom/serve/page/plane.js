// Figure 2 of the paper in SVG: ids in the plane of what two hashes add to their probabilities. Tinted is what was
// opened, hatched the corner that was not. The line x + y = p holds all ids as probable as the last answer; it is bent,
// because the axes are logarithmic: most probabilities are too small for any other picture. With one hash, a strip. What
// a memory adds is on no axis: its names are compared one by one, and the corner is about all other ids.

import { number, precise, shown, svg } from "./dom.js";

const MARGIN = { left: 56, right: 12, top: 24, bottom: 40 };
const STRIP = 170; // height with one hash
const TALLEST = 440;
const REACH = 20; // pixels from the pointer to a point it means
const GOLDEN = 0.618;
const DEPTH = 1e-4; // lowest probability of the axes, relative to the smallest edge or answer
const STEPS = 96; // of the line, which is bent

function cut(name, most = 26) {
  const letters = [...shown(name)];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join("");
}

// From probabilities to pixels by their logarithms, with some air around what is to be seen. What is below the lowest
// value of the axis lies on its border.
function scale(values, anchors, from, to) {
  const positive = (some) => some.filter((value) => value > 0);
  const least = Math.min(...positive(anchors), 1) * DEPTH;
  const [first, last] = [Math.max(least, Math.min(...positive(values), 1)), Math.max(...values, least)].map(Math.log);
  const air = 0.06 * (last - first || 1);
  const [low, high] = [first - air, last + air];
  const at = (value) => from + ((Math.max(value > 0 ? Math.log(value) : low, low) - low) / (high - low)) * (to - from);
  return { low: Math.exp(low), high: Math.exp(high), at };
}

export function ticks(low, high, wanted = 5) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const first = Math.ceil(low / step - 1e-9);
  const many = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: many }, (_, i) => ({
    value: (first + i) * step,
    text: number((first + i) * step, digits),
  }));
}

// Powers of ten, fewer where there are too many; with 2 and 5 times each where there are too few.
function logTicks(low, high, wanted) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const many = last - first + 1;
  const step = Math.max(1, Math.ceil(many / wanted));
  const factors = 3 * (many + 1) <= wanted ? [1, 2, 5] : [1];
  const found = [];
  for (let power = last; power >= first - 1; power -= step) found.push(...factors.map((factor) => factor * 10 ** power));
  const inside = found.filter((value) => value >= low && value <= high);
  return inside.map((value) => ({ value, text: precise(value, 1) }));
}

// A name that the memory brings is looked at, even if none of its buckets was opened.
export const kindOf = ({ answer, opened, excluded, memory }) =>
  answer ? "answer" : excluded ? "out" : opened || memory !== 0 ? "seen" : "unseen";

export class Plane {
  // All values are probabilities. points: {name, x, y, memory, opened, answer, excluded}, no y with one hash;
  // edges: [x, y], null if all was opened;  line: what x + y (or x) has to be to get in, null if anything does;
  // enough: whether the edges are a proof.
  constructor({ points, edges, line, enough, bound, labels, title }, width) {
    Object.assign(this, { points, edges, line, enough, bound, labels });
    this.flat = labels.length === 1;
    const height = this.flat ? STRIP : Math.min(width, TALLEST);
    this.box = {
      left: this.flat ? MARGIN.right : MARGIN.left,
      right: width - MARGIN.right,
      top: MARGIN.top,
      bottom: height - MARGIN.bottom,
    };
    const axis = (which, hash, from, to) => {
      const anchors = [...points.filter((p) => p.answer).map((p) => p[which]), ...(edges ? [edges[hash]] : [])];
      if (line !== null) anchors.push(line);
      return scale([...points.map((p) => p[which]), ...anchors], anchors, from, to);
    };
    this.x = axis("x", 0, this.box.left, this.box.right);
    if (!this.flat) this.y = axis("y", 1, this.box.bottom, this.box.top);
    this.spots = points.map((p, i) => [this.x.at(p.x), this.flat ? this.strewn(i) : this.y.at(p.y)]);
    this.chosen = svg("g", { class: "chosen" });
    this.node = svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, class: "plane", role: "img", "aria-label": title },
      this.defs(),
      this.regions(),
      this.axes(),
      this.dots(),
      this.level(),
      this.corner(),
      this.chosen,
    );
  }

  // With one hash the height means nothing: it keeps points from hiding one another.
  strewn(i) {
    const { top, bottom } = this.box;
    return top + 32 + ((i * GOLDEN) % 1) * (bottom - top - 44);
  }

  defs() {
    const { left, right, top, bottom } = this.box;
    return svg(
      "defs",
      {},
      svg(
        "pattern",
        { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        svg("line", { x1: 0, y1: 0, x2: 0, y2: 7, class: "hatch" }),
      ),
      svg("clipPath", { id: "inside" }, svg("rect", { x: left, y: top, width: right - left, height: bottom - top })),
    );
  }

  // What was opened, and the corner that was not. The part of that corner above the line has the colour of a warning.
  regions() {
    const { left, right, top, bottom } = this.box;
    const all = `M${left},${top}H${right}V${bottom}H${left}Z`;
    if (!this.edges) return svg("path", { d: all, class: "opened" });
    const ex = this.x.at(this.edges[0]);
    const ey = this.flat ? top : this.y.at(this.edges[1]);
    const corner = `M${left},${ey}H${ex}V${bottom}H${left}Z`;
    return svg(
      "g",
      {},
      svg("path", { d: all + corner, class: "opened", "fill-rule": "evenodd" }),
      svg("path", { d: corner, class: "closed" }),
      !this.enough && svg("path", { d: this.doubtful(corner), class: "open-question", "clip-path": "url(#inside)" }),
    );
  }

  doubtful(corner) {
    if (!(this.line > 0)) return corner; // anything gets in
    const [e1, e2] = this.edges;
    const { top, bottom } = this.box;
    if (this.flat) return `M${this.x.at(this.line)},${top}H${this.x.at(e1)}V${bottom}H${this.x.at(this.line)}Z`;
    const ends = [[this.line - e2, e2], ...this.bent().filter(([x, y]) => x <= e1 && y <= e2), [e1, this.line - e1]];
    return `M${this.x.at(e1)},${this.y.at(e2)}L${this.path(ends)}Z`;
  }

  path = (spots) => spots.map(([x, y]) => `${this.x.at(x)},${this.y.at(y)}`).join("L");

  // Spots of x + y = line, from the upper left to the lower right, close together where it bends.
  bent() {
    const far = Math.log(this.line / Math.min(this.x.low, this.y.low)) + 1;
    const parts = Array.from({ length: STEPS + 1 }, (_, i) => 1 / (1 + Math.exp(far * (1 - (2 * i) / STEPS))));
    return parts.map((part) => [this.line * part, this.line * (1 - part)]);
  }

  axes() {
    const { left, right, top, bottom } = this.box;
    const text = (x, y, content, props = {}) => svg("text", { x, y, class: "tick", ...props }, content);
    const parts = [svg("path", { d: `M${left},${top}V${bottom}H${right}`, class: this.flat ? "none" : "axis" })];
    if (this.flat) parts.push(svg("line", { x1: left, y1: bottom, x2: right, y2: bottom, class: "axis" }));
    for (const { value, text: label } of logTicks(this.x.low, this.x.high, (right - left) / 70)) {
      parts.push(text(this.x.at(value), bottom + 16, label, { "text-anchor": "middle" }));
    }
    parts.push(text(right, bottom + 33, this.labels[0], { "text-anchor": "end", class: "tick label" }));
    if (!this.flat) {
      for (const { value, text: label } of logTicks(this.y.low, this.y.high, (bottom - top) / 40)) {
        parts.push(text(left - 6, this.y.at(value) + 4, label, { "text-anchor": "end" }));
      }
      parts.push(text(2, top - 10, this.labels[1], { class: "tick label" }));
    }
    return svg("g", {}, parts);
  }

  dots() {
    const order = { unseen: 0, seen: 1, out: 2, answer: 3 }; // answers on top
    const drawn = this.points
      .map((point, i) => ({ kind: kindOf(point), i }))
      .sort((a, b) => order[a.kind] - order[b.kind]);
    return svg(
      "g",
      {},
      drawn.map(({ kind, i }) => {
        const [cx, cy] = this.spots[i];
        if (kind === "out") return svg("path", { d: `M${cx - 3},${cy - 3}l6,6m0,-6l-6,6`, class: "dot-out" });
        return svg("circle", { cx, cy, r: kind === "answer" ? 4.5 : 2.8, class: `dot-${kind}` });
      }),
    );
  }

  level() {
    if (this.line === null) return svg("g");
    const { left, right, top, bottom } = this.box;
    const label = `${this.flat ? "last answer" : "sum"} ${precise(this.line)}`;
    if (this.flat) {
      const x = this.x.at(this.line);
      const side = x > (left + right) / 2 ? "end" : "start";
      return svg(
        "g",
        {},
        svg("line", { x1: x, x2: x, y1: top, y2: bottom, class: "level" }),
        svg("text", { x: x + (side === "end" ? -6 : 6), y: top - 9, class: "note", "text-anchor": side }, label),
      );
    }
    if (!(this.line > 0)) return svg("g"); // the other hashes alone are enough
    const x = this.x.at(this.line);
    const side = right - x > 90 ? "start" : "end"; // named where it ends, below
    return svg(
      "g",
      {},
      svg("path", { d: `M${this.path(this.bent())}`, class: "level", "clip-path": "url(#inside)" }),
      svg("text", { x: x + (side === "end" ? -7 : 7), y: bottom - 7, class: "note", "text-anchor": side }, label),
    );
  }

  // The best that an unopened id could be: certified exactly when this lies below the line.
  corner() {
    if (!this.edges) return svg("g");
    const { left, top, bottom } = this.box;
    const cx = this.x.at(this.edges[0]);
    const cy = this.flat ? bottom : this.y.at(this.edges[1]);
    const side = cx - left > 110 ? "end" : "start";
    const [x, y] = [side === "end" ? cx - 10 : cx + 10, this.flat ? top + 16 : cy + 19];
    return svg(
      "g",
      { class: this.enough ? "corner" : "corner doubt" },
      this.flat && svg("line", { x1: cx, x2: cx, y1: top, y2: bottom, class: "edge" }),
      svg("rect", { x: cx - 5, y: cy - 5, width: 10, height: 10, transform: `rotate(45 ${cx} ${cy})` }),
      svg("text", { x, y, class: "note", "text-anchor": side }, `at most ${precise(this.bound)}`),
    );
  }

  mark(i) {
    this.chosen.replaceChildren();
    if (!this.points[i]) return;
    const [cx, cy] = this.spots[i];
    const left = cx > (this.box.left + this.box.right) / 2;
    const [x, y] = [cx + (left ? -12 : 12), Math.max(this.box.top + 12, cy - 8)];
    const label = { x, y, class: "note strong", "text-anchor": left ? "end" : "start" };
    this.chosen.append(svg("circle", { cx, cy, r: 8, class: "ring" }), svg("text", label, cut(this.points[i].name)));
  }

  // The point a pointer means, −1 if it is near none.
  nearest(event) {
    const frame = this.node.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    const away = this.spots.map(([x, y]) => Math.hypot(x - px, y - py));
    const least = Math.min(...away);
    return least <= REACH ? away.indexOf(least) : -1;
  }
}
