// From the state to a query and its answer. Queries wait a moment for the next change, and an answer that a newer
// query has overtaken is dropped.

import { call } from "./api.js";
import { debounce } from "./dom.js";
import { takesAnswers } from "./options.js";

const WAIT = 150;

export const isEmpty = (state, model) => (model.reads === "text" ? !state.text.trim() : state.context.length === 0);

// The request of a state: also what the API tab shows as an example.
export function queryOf(state, model) {
  const options = { k: state.k };
  if (state.beam !== null) Object.assign(options, { exact: false, beam: state.beam });
  if (model.reads === "text") return { path: "v1/text", body: { text: state.text, ...options } };
  if (state.skip !== null && takesAnswers(model)) options.exclude_context = state.skip;
  return { path: "v1/predict", body: { context: state.context, ...options } };
}

export class Ask {
  constructor({ model, start, answer, fail, wait }) {
    Object.assign(this, { model, start, answer, fail, wait });
    this.soon = debounce(WAIT, (state) => this.run(state));
  }

  stop() {
    this.soon.cancel();
    this.request?.abort();
    this.request = null;
    this.wait("");
  }

  ask(state) {
    this.stop();
    this.start();
    this.soon(state);
  }

  async run(state) {
    this.request = new AbortController();
    const { signal } = this.request;
    try {
      const { path, body } = queryOf(state, this.model);
      const answer = await call(path, { body: { ...body, explain: true }, signal, onWait: this.wait });
      if (!signal.aborted) this.answer(answer);
    } catch (error) {
      if (!signal.aborted) this.fail(error);
    }
  }
}
