// An input with names that begin as typed: the ARIA combobox with a listbox below it.

import { count, debounce, el, nameOf, plural } from "./dom.js";

const WAIT = 120;
const MOST = 8;

// complete(prefix, k, signal) → names;  choose(name) for a name out of the list;  typed(text, first) for Enter without
// one: first is the first suggestion, undefined if there is none or the list was dismissed.
export class Suggest {
  constructor({ complete, choose, typed, say }) {
    this.complete = complete;
    this.choose = choose;
    this.say = say;
    this.names = [];
    this.active = -1;
    this.listed = null; // the text that the names belong to
    this.dismissed = false;
    this.list = el("ul", {
      id: "suggestions",
      role: "listbox",
      "aria-label": "Names that begin so",
      class: "suggestions",
      hidden: true,
    });
    this.input = el("input", {
      id: "name",
      type: "text",
      role: "combobox",
      "aria-expanded": "false",
      "aria-controls": "suggestions",
      "aria-autocomplete": "list",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      placeholder: "Type a name",
      dir: "auto",
      oninput: () => this.ask(),
      onblur: () => this.close(),
      onkeydown: (event) => this.onKey(event, typed),
    });
    this.fetchSoon = debounce(WAIT, () => this.fetch());
  }

  ask() {
    this.stop();
    this.dismissed = false;
    if (this.input.value.trim() === "") this.close();
    else this.fetchSoon();
  }

  // A request that a newer letter has overtaken must not fill the list.
  stop() {
    this.fetchSoon.cancel();
    this.request?.abort();
    this.request = null;
  }

  async fetch() {
    this.request = new AbortController();
    const { signal } = this.request;
    const text = this.input.value.trim();
    try {
      const names = await this.complete(this.input.value.trimStart(), MOST, signal);
      if (!signal.aborted) this.open(names, text);
    } catch {
      // Without a list, a whole name can still be typed; the query then reports what failed.
      if (!signal.aborted) this.close();
    }
  }

  open(names, text) {
    if (document.activeElement !== this.input) return;
    this.names = names;
    this.listed = text;
    this.list.replaceChildren(
      ...names.map(({ name, count: times }, i) =>
        el(
          "li",
          {
            id: `suggestion-${i}`,
            role: "option",
            "aria-selected": "false",
            onpointerdown: (event) => event.preventDefault(), // the input keeps the focus
            onclick: () => this.take(i),
          },
          nameOf(name),
          el("span", { class: "soft small" }, `${count(times)}×`),
        ),
      ),
    );
    this.mark(-1);
    this.list.hidden = names.length === 0;
    this.input.setAttribute("aria-expanded", String(names.length > 0));
    this.say(names.length ? `${plural(names.length, "suggestion")}; Enter takes the first, arrow down chooses.` : "No name begins so.");
  }

  close() {
    this.stop();
    this.names = [];
    this.listed = null;
    this.list.hidden = true;
    this.list.replaceChildren();
    this.input.setAttribute("aria-expanded", "false");
    this.mark(-1);
  }

  mark(i) {
    this.active = i;
    [...this.list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === i)));
    this.list.children[i]?.scrollIntoView({ block: "nearest" });
    if (i >= 0) this.input.setAttribute("aria-activedescendant", `suggestion-${i}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  take(i) {
    const { name } = this.names[i];
    this.input.value = "";
    this.close();
    this.choose(name);
  }

  // Who types fast presses Enter before the list has come.
  async first(text) {
    if (this.dismissed) return undefined;
    if (this.listed === text) return this.names[0]?.name;
    try {
      return (await this.complete(text, 1))[0]?.name;
    } catch {
      return undefined; // the query then reports what failed
    }
  }

  async enter(typed) {
    if (this.active >= 0) return this.take(this.active);
    const text = this.input.value.trim();
    const same = this.names.findIndex(({ name }) => name === text);
    if (same >= 0) return this.take(same);
    const first = text && this.first(text);
    this.stop();
    if (text) typed(text, await first);
  }

  onKey(event, typed) {
    if (event.isComposing) return; // Enter and arrows belong to the input method
    const n = this.names.length;
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !event.altKey) {
      event.preventDefault();
      if (!n) this.ask();
      else this.mark(event.key === "ArrowDown" ? (this.active + 1) % n : (this.active <= 0 ? n : this.active) - 1);
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.enter(typed);
    } else if (event.key === "Escape") {
      this.dismissed = true;
      if (n) this.close();
      else this.input.value = "";
    }
  }
}
