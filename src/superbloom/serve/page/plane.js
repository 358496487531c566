// Figure 2 of the paper in SVG: ids in the plane of their values under two hashes. Tinted is what was opened, hatched
// the corner that was not; the line holds all ids that score as much as the last answer. With one hash, a strip.

import { number, shown, svg } from "./dom.js";

const MARGIN = { left: 40, right: 10, top: 24, bottom: 40 };
const STRIP = 170; // height with one hash
const TALLEST = 440;
const REACH = 20; // pixels from the pointer to a point it means
const GOLDEN = 0.618;

function cut(name, most = 26) {
  const letters = [...shown(name)];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join("");
}

// From values to pixels, with some air around what is to be seen.
function scale(values, from, to) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const air = 0.06 * (high - low || 1);
  const at = (value) => from + ((value - low + air) / (high - low + 2 * air)) * (to - from);
  return { low: low - air, high: high + air, at };
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

export const kindOf = ({ answer, opened, excluded }) =>
  answer ? "answer" : excluded ? "out" : opened ? "seen" : "unseen";

export class Plane {
  // points: {name, x, y, opened, answer, excluded}, no y with one hash;  edges: [x, y], null if all was opened;
  // line: what x + y (or x) has to be to get in, null if anything does;  enough: whether the edges are a proof.
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
    const xs = [...points.map((p) => p.x), ...(edges ? [edges[0]] : []), ...(this.flat && line !== null ? [line] : [])];
    this.x = scale(xs, this.box.left, this.box.right);
    if (!this.flat)
      this.y = scale([...points.map((p) => p.y), ...(edges ? [edges[1]] : [])], this.box.bottom, this.box.top);
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
    if (this.line === null) return corner;
    const [e1, e2] = this.edges;
    const { top, bottom } = this.box;
    if (this.flat) return `M${this.x.at(this.line)},${top}H${this.x.at(e1)}V${bottom}H${this.x.at(this.line)}Z`;
    const triangle = [
      [e1, e2],
      [this.line - e2, e2],
      [e1, this.line - e1],
    ];
    return `M${triangle.map(([x, y]) => `${this.x.at(x)},${this.y.at(y)}`).join("L")}Z`;
  }

  axes() {
    const { left, right, top, bottom } = this.box;
    const text = (x, y, content, props = {}) => svg("text", { x, y, class: "tick", ...props }, content);
    const parts = [svg("path", { d: `M${left},${top}V${bottom}H${right}`, class: this.flat ? "none" : "axis" })];
    if (this.flat) parts.push(svg("line", { x1: left, y1: bottom, x2: right, y2: bottom, class: "axis" }));
    for (const { value, text: label } of ticks(this.x.low, this.x.high, (right - left) / 70)) {
      parts.push(text(this.x.at(value), bottom + 16, label, { "text-anchor": "middle" }));
    }
    parts.push(text(right, bottom + 33, this.labels[0], { "text-anchor": "end", class: "tick label" }));
    if (!this.flat) {
      for (const { value, text: label } of ticks(this.y.low, this.y.high, (bottom - top) / 60)) {
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
    const label = `${this.flat ? "last answer" : "sum"} ${number(this.line)}`;
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
    const ends = [
      [this.line - this.y.high, this.y.high],
      [this.line - this.y.low, this.y.low],
    ];
    const [[x1, y1], [x2, y2]] = ends.map(([a, b]) => [this.x.at(a), this.y.at(b)]);
    // Named where it leaves the plane, to the right or below.
    const slope = (y2 - y1) / (x2 - x1);
    const [x, y] = x2 > right ? [right, y1 + (right - x1) * slope] : [x2, bottom];
    const seen = y > top + 20 && x > left + 90;
    return svg(
      "g",
      {},
      svg("line", { x1, y1, x2, y2, class: "level", "clip-path": "url(#inside)" }),
      seen && svg("text", { x: x - 12, y: Math.min(y + 6, bottom - 6), class: "note", "text-anchor": "end" }, label),
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
      svg("text", { x, y, class: "note", "text-anchor": side }, `at most ${number(this.bound)}`),
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
