// Elements, names and numbers, as all other modules make and show them.

const SVG = "http://www.w3.org/2000/svg";

// Names come from anywhere, so nothing here parses markup: children become text nodes.
function build(node, props, children) {
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "vars") for (const [name, text] of Object.entries(value)) node.style.setProperty(name, text);
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (tag, props = {}, ...children) => build(document.createElement(tag), props, children);
export const svg = (tag, props = {}, ...children) => build(document.createElementNS(SVG, tag), props, children);

// Line ends and other control characters as signs and a blank name in quotes, so that every name can be seen.
export function shown(name) {
  const text = name.replace(/\r\n|[\u0000-\u001f]/g, (c) =>
    /[\r\n]/.test(c) ? "↵" : String.fromCharCode(0x2400 + c.charCodeAt(0)),
  );
  return text.trim() === "" ? `“${text}”` : text;
}

// bdi keeps a name's writing direction from reordering its neighbours.
export const nameOf = (name, props = {}) =>
  el("bdi", { class: "name", title: name.length > 40 ? shown(name) : null, ...props }, shown(name));

// The same for attributes and titles, where there are no elements: first strong isolate … pop.
export function spoken(name, most = 80) {
  const letters = [...shown(name)];
  return `\u2068${letters.length > most ? `${letters.slice(0, most).join("")}…` : letters.join("")}\u2069`;
}

export const MASK = "[MASK]";

// A table that scrolls by itself where it is too wide. The first cell of a row names it; a row may be {cells, props}.
export function tableOf(title, heads, rows, props = {}) {
  const head = (text) => (text ? el("th", { scope: "col" }, text) : el("td"));
  const row = ({ cells: [first, ...cells], props: own = {} }) =>
    el(
      "tr",
      own,
      el("th", { scope: "row" }, first),
      cells.map((cell) => el("td", {}, cell)),
    );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
    el(
      "table",
      props,
      el("thead", {}, el("tr", {}, heads.map(head))),
      el(
        "tbody",
        {},
        rows.map((cells) => row(Array.isArray(cells) ? { cells } : cells)),
      ),
    ),
  );
}

export const factsOf = (pairs) =>
  el(
    "dl",
    { class: "facts" },
    pairs.flatMap(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]),
  );

export const count = (n) => n.toLocaleString("en");
export const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;
export const number = (x, digits = 2) =>
  x
    .toFixed(digits)
    .replace(/^-(0(\.0*)?)$/, "$1")
    .replace("-", "−");
export const signed = (x, digits = 2) => (Number(x.toFixed(digits)) > 0 ? "+" : "") + number(x, digits);

// A probability where space is short.
export const percent = (p) =>
  p > 0 && p < 5e-6 ? "<0.001 %" : `${(100 * p).toFixed(p >= 0.1 ? 1 : p >= 0.001 ? 2 : 3)} %`;

const raised = (n) => String(n).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);

// A probability with some significant digits, however small it is: 0.0312 %, 1.25·10⁻⁷ %.
export function precise(p, digits = 3) {
  const x = 100 * p;
  if (!(x > 0)) return "0 %";
  const power = Math.floor(Math.log10(x));
  if (power >= -3) return `${x.toFixed(Math.max(0, digits - 1 - power))} %`;
  const [factor, exponent] = x.toExponential(digits - 1).split("e");
  return `${factor === "1" ? "" : `${factor}·`}10${raised(Number(exponent))} %`;
}

// As few digits as tell two probabilities apart, so that a sentence never says "0.12 % is below 0.12 %".
export function apart(a, b) {
  let digits = 3;
  while (digits < 9 && a !== b && precise(a, digits) === precise(b, digits)) digits += 1;
  return [precise(a, digits), precise(b, digits)];
}

export function debounce(wait, run) {
  let timer = 0;
  const later = (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...args), wait);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

// Clipboard needs a secure context; over plain http the old command still works.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "heard", "aria-hidden": "true", value: text });
    const before = document.activeElement;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    before?.focus();
  }
}

export function copyButton(label, text) {
  const button = el("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "Copied";
    setTimeout(() => {
      button.textContent = label;
    }, 1500);
  });
  return button;
}
