// The context as chips in a field, with an input for the next name. A chip is a button: arrows go from chip to chip,
// Delete takes it out, Alt with an arrow moves it. Without a mask among them, the place to predict comes last.

import { MASK, el, nameOf, spoken } from "./dom.js";
import { Suggest } from "./suggest.js";

export class Chips {
  // change(context) is called with the new list; check(text) → the name as the server reads it, null for a mask.
  constructor({ complete, check, change, say, fail }) {
    this.change = change;
    this.say = say;
    this.context = [];
    this.focused = null; // place of the chip to focus after the next draw
    this.suggest = new Suggest({
      complete,
      say,
      choose: (name) => this.add(name),
      // A name that the server knows wins; else the first suggestion is meant.
      typed: async (text, first) => {
        try {
          const name = await check(text).catch((error) => {
            if (first === undefined || !error.closest?.[text]) throw error;
            return first;
          });
          this.input.value = "";
          this.suggest.close();
          this.add(name);
        } catch (error) {
          this.suggest.close();
          fail(error);
        }
      },
    });
    this.input = this.suggest.input;
    this.input.addEventListener("keydown", (event) => this.onInputKey(event));
    this.list = el("ul", { class: "chips", role: "list", "aria-label": "Context, in order" });
    this.ghost = el(
      "span",
      { class: "ghost", title: "Without a mask in between, the place to predict comes last" },
      MASK,
    );
    this.node = el(
      "div",
      {},
      el("label", { for: "name", class: "caption" }, "Context"),
      el(
        "div",
        { class: "field", onclick: (event) => event.target === event.currentTarget && this.input.focus() },
        this.list,
        this.input,
        this.ghost,
      ),
      this.suggest.list,
      el("p", { id: "chip-help", class: "heard" }, "Delete takes it out, Alt with an arrow moves it."),
    );
  }

  show(context) {
    const hadFocus = this.list.contains(document.activeElement);
    this.context = context;
    this.list.replaceChildren(...context.map((name, place) => this.chip(name, place)));
    this.ghost.hidden = context.includes(null);
    this.input.placeholder = context.length ? "Add a name" : "Type a name";
    if (this.focused !== null) this.focus(this.focused);
    else if (hadFocus) this.input.focus();
    this.focused = null;
  }

  chip(name, place) {
    const what = name === null ? MASK : spoken(name);
    // Subtle: a press must not take the focus, or the arrows of the chip that has it go and what is pressed moves.
    const aside = (label, text, act) =>
      el(
        "button",
        {
          type: "button",
          tabindex: "-1",
          class: "aside",
          "aria-label": `${label} ${what}`,
          onmousedown: (event) => event.preventDefault(),
          onclick: act,
        },
        text,
      );
    return el(
      "li",
      { class: name === null ? "chip mask" : "chip" },
      el(
        "button",
        {
          type: "button",
          class: "body",
          "aria-describedby": "chip-help",
          tabindex: place === 0 ? "0" : "-1",
          "aria-label": `${what}, ${place + 1} of ${this.context.length}`,
          onclick: (event) => event.currentTarget.focus(), // Safari does not focus a clicked button
          onfocus: () => this.rove(place),
          onkeydown: (event) => this.onChipKey(event, place),
        },
        name === null ? MASK : nameOf(name),
      ),
      el(
        "span",
        { class: "moves" },
        place > 0 && aside("Move left:", "‹", () => this.move(place, -1)),
        place < this.context.length - 1 && aside("Move right:", "›", () => this.move(place, 1)),
      ),
      aside("Take out", "×", () => this.remove(place)),
    );
  }

  bodies() {
    return [...this.list.querySelectorAll(".body")];
  }

  rove(place) {
    this.bodies().forEach((body, at) => {
      body.tabIndex = at === place ? 0 : -1;
    });
  }

  focus(place) {
    const bodies = this.bodies();
    if (!bodies.length || place >= bodies.length) this.input.focus();
    else bodies[Math.max(0, place)]?.focus();
  }

  add(name, place = this.context.length) {
    this.say(`${name === null ? MASK : spoken(name)} added.`);
    this.change(this.context.toSpliced(place, 0, name));
  }

  // It comes last and gets the focus, so that Alt with an arrow brings it where it belongs.
  addMask() {
    this.focused = this.context.length;
    this.add(null);
  }

  remove(place) {
    const name = this.context[place];
    this.say(`${name === null ? MASK : spoken(name)} taken out.`);
    this.focused = Math.min(place, this.context.length - 2);
    this.change(this.context.toSpliced(place, 1));
  }

  move(place, by) {
    const to = place + by;
    if (to < 0 || to >= this.context.length) return;
    const moved = this.context.toSpliced(place, 1).toSpliced(to, 0, this.context[place]);
    this.say(`Moved to place ${to + 1} of ${moved.length}.`);
    this.focused = to;
    this.change(moved);
  }

  onChipKey(event, place) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.altKey)
      this.move(place, step); // instead of the browser's back and forward
    else if (step) this.focus(place + step);
    else if (event.key === "Home") this.focus(0);
    else if (event.key === "End") this.focus(this.context.length);
    else if (event.key === "Delete" || event.key === "Backspace") this.remove(place);
    else if (event.key === "Escape") this.input.focus();
    else return;
    event.preventDefault();
  }

  onInputKey(event) {
    if (event.defaultPrevented || event.isComposing || this.input.selectionEnd > 0 || !this.context.length) return;
    const last = this.context.length - 1;
    if (event.key === "Backspace" && this.input.value === "") {
      event.preventDefault();
      this.say(`${this.context[last] === null ? MASK : spoken(this.context[last])} taken out.`);
      this.change(this.context.slice(0, -1));
    } else if (event.key === "ArrowLeft" && !event.altKey) {
      event.preventDefault();
      this.focus(last);
    }
  }
}
