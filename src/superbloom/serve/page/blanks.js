// The query of a model that reads text: a text with [MASK] where something is to be filled in.

import { MASK, el } from "./dom.js";

export class Blanks {
  constructor({ change }) {
    this.input = el("textarea", {
      id: "text",
      rows: "3",
      dir: "auto",
      spellcheck: "false",
      placeholder: `Miles Davis plays ${MASK}.`,
      oninput: () => change(this.input.value),
    });
    this.change = change;
    this.node = el("div", {}, el("label", { for: "text", class: "caption" }, `Text with ${MASK}`), this.input);
  }

  show(text) {
    if (this.input.value !== text) this.input.value = text; // setting it moves the cursor
  }

  addMask() {
    this.input.focus();
    this.input.setRangeText(MASK, this.input.selectionStart, this.input.selectionEnd, "end");
    this.change(this.input.value);
  }
}
