// What may be chosen about the answers: how many, without the context's own names, and how to search.

import { copyButton, el } from "./dom.js";

const SIZES = [5, 10, 20, 50, 100];
export const FIRST_BEAM = 24;

// Whether what is answered may also stand in the context: not where the model answers from another catalogue.
export const takesAnswers = (model) => model.reads === "names" && !model.separate_targets;

export class Options {
  constructor({ model, change, addMask, clear }) {
    this.sizes = SIZES.filter((k) => k <= model.limits.k);
    this.k = el("select", { id: "k", onchange: () => change({ k: Number(this.k.value) }) });
    this.skip = el("input", { type: "checkbox", id: "skip", onchange: () => change({ skip: this.skip.checked }) });
    const way = (value, label) => {
      const radio = el("input", {
        type: "radio",
        name: "way",
        value,
        onchange: () => change({ beam: this.chosenBeam() }),
      });
      return [radio, el("label", { class: "check" }, radio, label)];
    };
    const [exact, exactLabel] = way("exact", "exact");
    const [once, onceLabel] = way("beam", "one round of");
    Object.assign(this, { exact, once, leavesOut: model.leaves_out_context });
    this.beam = el("input", {
      type: "number",
      min: "1",
      max: model.num_buckets,
      step: "1",
      value: Math.min(FIRST_BEAM, model.num_buckets),
      class: "beam",
      "aria-label": "buckets a hash in one round",
      onchange: () => this.once.checked && change({ beam: this.chosenBeam() }),
    });
    this.most = model.num_buckets;
    this.node = el(
      "div",
      { class: "options" },
      el(
        "div",
        { class: "row choices" },
        el("label", { class: "check", for: "k" }, "Answers", this.k),
        takesAnswers(model) && el("label", { class: "check" }, this.skip, "leave out names of the context"),
        el(
          "fieldset",
          { class: "row" },
          el("legend", { class: "heard" }, "Search"),
          exactLabel,
          el("span", { class: "check" }, onceLabel, this.beam, "buckets"),
        ),
      ),
      el(
        "div",
        { class: "row" },
        el("button", { type: "button", class: "quiet", onclick: addMask }, "Place [MASK]"),
        el("button", { type: "button", class: "quiet", onclick: clear }, "Clear"),
        copyButton("Copy link", () => location.href),
      ),
    );
  }

  chosenBeam() {
    if (this.exact.checked) return null;
    const given = Math.round(Number(this.beam.value));
    return Math.min(Math.max(given || FIRST_BEAM, 1), this.most);
  }

  show({ k, skip, beam }) {
    const sizes = [...new Set([...this.sizes, k])].sort((a, b) => a - b);
    this.k.replaceChildren(...sizes.map((size) => el("option", { value: size, selected: size === k }, String(size))));
    this.skip.checked = skip ?? this.leavesOut;
    this.exact.checked = beam === null;
    this.once.checked = beam !== null;
    if (beam !== null) this.beam.value = beam;
  }
}
