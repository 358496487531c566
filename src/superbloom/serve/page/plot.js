// Lines over a common x in SVG, each labelled where it ends.

import { el, svg, tableOf } from "./dom.js";
import { ticks } from "./plane.js";

const HEIGHT = 240;
const MARGIN = { left: 44, right: 64, top: 14, bottom: 40 };

// series: [{label, style, values}], values beside xs, null where unknown;  xTicks: [{value, text}], else round numbers.
function draw({ series, xs, xLabel, yLabel, xTicks, title }, width) {
  const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: HEIGHT - MARGIN.bottom };
  const [low, high] = [Math.min(...xs), Math.max(...xs)];
  const top = Math.max(...series.flatMap(({ values }) => values.filter((v) => v !== null)), 1e-9) * 1.06;
  const x = (v) => box.left + ((v - low) / (high - low || 1)) * (box.right - box.left);
  const y = (v) => box.bottom - (v / top) * (box.bottom - box.top);
  const text = (props, content) => svg("text", { class: "tick", ...props }, content);
  const node = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    width,
    height: HEIGHT,
    class: "plot",
    role: "img",
    "aria-label": title,
  });
  for (const { value, text: label } of ticks(0, top, 4)) {
    node.append(
      svg("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), class: "grid" }),
      text({ x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, label),
    );
  }
  for (const { value, text: label } of xTicks ?? ticks(low, high, (box.right - box.left) / 80)) {
    node.append(text({ x: x(value), y: box.bottom + 16, "text-anchor": "middle" }, label));
  }
  node.append(
    text({ x: box.right, y: box.bottom + 34, "text-anchor": "end", class: "tick label" }, xLabel),
    text({ x: box.left + 4, y: box.top, class: "tick label" }, yLabel),
  );
  const known = (values) => xs.map((v, at) => [v, values[at]]).filter(([, v]) => v !== null && v !== undefined);
  const drawn = series
    .map(({ label, style, values }) => ({ label, style, spots: known(values).map(([a, b]) => [x(a), y(b)]) }))
    .filter(({ spots }) => spots.length)
    .sort((a, b) => a.spots.at(-1)[1] - b.spots.at(-1)[1]);
  let lowest = Infinity; // labels from the top down, none over another
  for (const { label, style, spots } of drawn) {
    const [endX, endY] = spots.at(-1);
    lowest = lowest === Infinity ? endY : Math.max(endY, lowest + 15);
    node.append(
      svg("polyline", { points: spots.map((s) => s.join(",")).join(" "), class: `line-${style}` }),
      svg(
        "g",
        {},
        spots.map(([cx, cy]) => svg("circle", { cx, cy, r: spots.length > 30 ? 1.5 : 2.8, class: `mark-${style}` })),
      ),
      text({ x: endX + 8, y: lowest + 4, class: "tick label" }, label),
    );
  }
  return node;
}

// A figure that is drawn again when its width changes, with its numbers as a table below.
export function plot(what) {
  const frame = el("div", { class: "frame" });
  let width = 0;
  new ResizeObserver(() => {
    if (!frame.clientWidth || frame.clientWidth === width) return;
    width = frame.clientWidth;
    frame.replaceChildren(draw(what, width));
  }).observe(frame);
  const names = what.xNames ?? what.xs.map(String);
  const rows = names.map((name, at) => [name, ...what.series.map(({ values }) => values[at]?.toFixed(3) ?? "")]);
  return el(
    "figure",
    {},
    el("figcaption", {}, what.title),
    frame,
    el(
      "details",
      {},
      el("summary", {}, "In numbers"),
      tableOf(what.title, [what.xLabel, ...what.series.map(({ label }) => label)], rows),
    ),
  );
}
