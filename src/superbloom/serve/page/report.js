// The Report tab: how well the model does beside yardsticks, for frequent and rare names, and how it learned.

import { count, el, factsOf, number, percent, plural, svg, tableOf } from "./dom.js";
import { plot } from "./plot.js";

const SIZES = ["1", "10", "20"];

export function reportOf(report, model) {
  const { test, history } = report;
  return [
    el("h2", {}, "Report"),
    ...(test ? testOf(test) : [howTo()]),
    ...(history?.length > 1 ? [curveOf(history)] : []),
    el("h3", {}, "The model"),
    aboutModel(model),
  ];
}

function howTo() {
  return el(
    "div",
    { class: "note-box" },
    el("p", {}, "This server was started without a report. To get one:"),
    el(
      "pre",
      { tabindex: "0" },
      "superbloom evaluate MODEL CORPUS --out REPORT\nsuperbloom serve MODEL --report REPORT",
    ),
  );
}

function testOf(test) {
  const rows = [["this model", test.recall]];
  if (test["by sum"]) rows.push(["the paper's sum", test["by sum"]]);
  rows.push(...Object.entries(test.yardsticks ?? {}));
  const parts = [
    el(
      "p",
      { class: "soft" },
      `${count(test.rows)} hidden elements of ${test.split} rows: `,
      "how many are among the first 1, 10 and 20 answers, with 95 % intervals; ",
      `names of the context are ${test.filter_seen ? "left out" : "included"}.`,
    ),
    recallTable("Recall beside yardsticks", rows),
  ];
  const kinds = Object.entries(test.kinds ?? {});
  if (kinds.length) {
    parts.push(
      el("h3", {}, "By what was hidden"),
      recallTable(
        "Recall by what was hidden",
        kinds.map(([kind, found]) => [labelled(kind, found.hidden), found]),
      ),
    );
  }
  parts.push(othersOf(test));
  if (test.deciles?.length) parts.push(decilesOf(test.deciles));
  return parts;
}

const labelled = (label, many, what = "") => (many ? `${label} (${count(many)}${what})` : label);

function recallTable(title, rows) {
  const sizes = SIZES.filter((k) => rows.some(([, found]) => found[k]));
  const most = (k) => Math.max(...rows.map(([, found]) => found[k]?.high ?? found[k]?.value ?? 0), 1e-9);
  const cells = rows.map(([label, found], i) => ({
    cells: [label, ...sizes.map((k) => valueOf(found[k], most(k)))],
    props: { class: i === 0 ? "own" : null },
  }));
  return tableOf(title, ["", ...sizes.map((k) => `recall@${k}`)], cells, { class: "recall" });
}

function valueOf(found, most) {
  if (!found) return "";
  const { value, low, high } = found;
  const at = (v) => (100 * v) / most;
  return [
    el("span", { class: "value" }, value.toFixed(3)),
    " ",
    low !== undefined && el("span", { class: "soft small whole" }, `${low.toFixed(3)}–${high.toFixed(3)}`),
    low !== undefined &&
      svg(
        "svg",
        { class: "interval", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("line", { x1: at(low), x2: at(high), y1: 4, y2: 4, class: "whisker" }),
        svg("line", { x1: at(value), x2: at(value), y1: 0, y2: 8, class: "middle" }),
      ),
  ];
}

function othersOf({ ndcg, mrr, certified, token_recall_at_1: tokens }) {
  const facts = [];
  const at = (found) =>
    SIZES.filter((k) => k in found)
      .map((k) => `@${k} ${found[k].toFixed(3)}`)
      .join(" · ");
  if (ndcg) facts.push(["NDCG", at(ndcg)]);
  if (mrr) facts.push(["MRR", at(mrr)]);
  if (tokens) facts.push(["Tokens right at 1", (tokens.value ?? tokens).toFixed(3)]);
  if (certified !== undefined && certified !== null) facts.push(["Answers certified", percent(certified)]);
  return factsOf(facts);
}

// A line for each k that was measured; the same k always has the same style.
function recalls(rows) {
  const lines = SIZES.map((k, style) => ({
    label: `recall@${k}`,
    style,
    values: rows.map((row) => row[`recall_at_${k}`] ?? null),
  }));
  return lines.filter(({ values }) => values.some((value) => value !== null));
}

function decilesOf(deciles) {
  const xs = deciles.map((_, i) => i + 1);
  return plot({
    title: "Frequent and rare names: tenths of the hidden elements",
    series: recalls(deciles),
    xs,
    xLabel: "tenths, most frequent first",
    yLabel: "recall",
    xTicks: xs.map((value) => ({ value, text: String(value) })),
    xNames: deciles.map(({ rows }, i) => labelled(String(i + 1), rows, " rows")),
  });
}

function curveOf(history) {
  const timed = history.every(({ seconds }) => typeof seconds === "number");
  const long = timed && history.at(-1).seconds > 600;
  const xs = history.map(({ step, seconds }) => (long ? seconds / 60 : timed ? seconds : step));
  return plot({
    title: "As it learned, on validation rows",
    series: recalls(history),
    xs,
    xLabel: timed ? (long ? "minutes" : "seconds") : "steps",
    yLabel: "recall",
    xNames: history.map(({ step }, at) =>
      timed ? `${number(xs[at], long ? 1 : 0)} (step ${count(step)})` : count(step),
    ),
  });
}

const lasting = (seconds) => (seconds < 90 ? `${number(seconds, 0)} seconds` : `${number(seconds / 60, 1)} minutes`);

function aboutModel(model) {
  const yes = (value) => (value ? "yes" : "no");
  const facts = [
    ["Ids", count(model.num_ids)],
    ["Hashes", `${model.num_hashes} of ${count(model.num_buckets)} buckets, ${count(model.alpha)} ids to a bucket`],
    ["Network", `${plural(model.layers, "layer")} of ${count(model.dim)}, ${count(model.parameters)} parameters`],
    ["Reads", `up to ${count(model.seq_len)} ${model.reads === "text" ? "entries of a text" : "names"}`],
    ["Precision", model.precision],
    ["Frequency prior", yes(model.prior)],
    ["Steps", model.steps && count(model.steps)],
    ["Trained for", model.trained_seconds && lasting(model.trained_seconds)],
    ["Version", model.version],
  ];
  return factsOf(facts.filter(([, value]) => value !== null && value !== undefined));
}
