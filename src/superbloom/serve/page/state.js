// What is asked and which tab is open, kept in the fragment of the address: a link is the whole state.
//
//   #c=Copenhagen&m=&c=Paris&k=20&skip=1&beam=24&tab=report&why=0:Denmark     c: a name, m: a mask, t: a text

export const TABS = ["ask", "report", "api"];
export const DEFAULT_K = 10;

const whole = (text, most) => {
  const n = Number(text);
  return text !== null && Number.isInteger(n) && n >= 1 ? Math.min(n, most) : null;
};

export function parse(fragment, limits) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const context = [...given]
    .filter(([field]) => field === "c" || field === "m")
    .map(([f, name]) => (f === "m" ? null : name));
  const why = /^(\d+):([^]*)$/.exec(given.get("why") ?? "");
  return {
    tab: TABS.includes(given.get("tab")) ? given.get("tab") : "ask",
    context,
    text: given.get("t") ?? "",
    k: whole(given.get("k"), limits.k) ?? DEFAULT_K,
    skip: { 1: true, 0: false }[given.get("skip")] ?? null, // null: as the model does
    beam: whole(given.get("beam"), limits.buckets),
    why: why && { mask: Number(why[1]), name: why[2] },
  };
}

export function format(state) {
  const out = new URLSearchParams();
  for (const name of state.context) out.append(name === null ? "m" : "c", name ?? "");
  if (state.text) out.set("t", state.text);
  out.set("k", state.k);
  if (state.skip !== null) out.set("skip", state.skip ? "1" : "0");
  if (state.beam !== null) out.set("beam", state.beam);
  if (state.tab !== "ask") out.set("tab", state.tab);
  if (state.why) out.set("why", `${state.why.mask}:${state.why.name}`);
  return `#${out}`;
}

// Holds the state. change() writes the address and calls the listener; going back or forward also calls it.
export class Store {
  constructor(limits, fallback, listener) {
    this.limits = limits;
    this.fallback = fallback; // what a bare address stands for
    this.listener = listener;
    this.state = this.read();
    addEventListener("popstate", () => {
      this.state = this.read();
      listener(this.state);
    });
  }

  read() {
    const state = parse(location.hash, this.limits);
    return location.hash.length > 1 ? state : { ...state, ...this.fallback };
  }

  // replace: for changes that nobody wants to go back through. Only the first of several typed letters is a step.
  change(patch, { replace = false, typing = false } = {}) {
    replace ||= typing && this.typing;
    this.typing = typing;
    this.state = { ...this.state, ...patch };
    const address = format(this.state);
    if (address !== location.hash) history[replace ? "replaceState" : "pushState"](null, "", address);
    this.listener(this.state);
  }
}
