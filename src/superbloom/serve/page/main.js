// Puts the page together: state → query → answers and certificate, and the two tabs beside it.

import { ApiError, call, key, setKey } from "./api.js";
import { apiOf } from "./apidoc.js";
import { Answers, summaryOf } from "./answers.js";
import { Ask, isEmpty, queryOf } from "./ask.js";
import { Blanks } from "./blanks.js";
import { Certificate } from "./certificate.js";
import { Chips } from "./chips.js";
import { MASK, count, el, nameOf, shown } from "./dom.js";
import { Options, takesAnswers } from "./options.js";
import { reportOf } from "./report.js";
import { similarOf } from "./similar.js";
import { Store } from "./state.js";
import { initTabs, showTab } from "./tabs.js";

const LONGEST_PREFIX = 200; // the server takes no more
const MOST_SIMILAR = 10;
const $ = (id) => document.getElementById(id);
const say = (line) => {
  $("live").textContent = line;
};

// One line above everything: busy, away, or why there is no page yet.
function notice(line, again) {
  const button = again && el("button", { type: "button", class: "quiet", onclick: again }, "Try again");
  $("notice").replaceChildren(line, ...(button ? [" ", button] : []));
  $("notice").hidden = !line;
}

function message(...parts) {
  $("message").replaceChildren(...parts);
}

let afterKey = null; // what to do again once there is a key

function askForKey(again) {
  afterKey = again;
  $("key-form").hidden = false;
  $("key").value = "";
  $("key").focus();
  notice(key() ? "The server did not take that key." : "");
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("key").value);
  $("key-form").hidden = true;
  notice("");
  afterKey?.();
});

// Failures that are not about what was asked: true if this was one.
function handled(error, again) {
  if (error.status === 401) askForKey(again);
  else if (error.status === 0 || error.status === 503) notice(error.message, again);
  else return false;
  return true;
}

class Page {
  constructor(model) {
    this.model = model;
    this.text = model.reads === "text";
    const [first] = model.examples;
    const fallback = first === undefined ? {} : this.text ? { text: first } : { context: first };
    this.chips = new Chips({
      complete: async (typed, k, signal) => {
        const query = new URLSearchParams({ prefix: typed.slice(0, LONGEST_PREFIX), k });
        return (await call(`v1/names?${query}`, { signal })).names;
      },
      check: async (text) => (await call("v1/predict", { body: { context: [text], k: 1 }, onWait: notice })).context[0],
      change: (context) => this.store.change({ context }),
      fail: (error) => this.failed(error, (name) => this.take(name)),
      say,
    });
    this.blanks = new Blanks({ change: (text) => this.store.change({ text }, { typing: true }) });
    this.query = this.text ? this.blanks : this.chips;
    this.options = new Options({
      model,
      change: (patch) => this.store.change(patch),
      addMask: () => this.query.addMask(),
      clear: () => {
        this.store.change({ context: [], text: "", why: null });
        this.query.input.focus();
      },
    });
    this.answers = new Answers($("answers"), {
      open: (why) => this.store.change({ why }, { replace: true }),
      add: takesAnswers(model) ? (name) => this.chips.add(name) : null,
      text: this.text,
      prior: model.prior,
      similar: (name) => this.similar([name], ["Names similar to ", nameOf(name)]),
      point: (mask, name) => this.certificate.point(mask, name),
    });
    this.certificate = new Certificate($("certificate"), {
      tryBeam: (beam) => this.store.change({ beam }),
    });
    this.ask = new Ask({
      model,
      start: () => {
        $("columns").classList.add("stale");
        $("columns").setAttribute("aria-busy", "true");
      },
      answer: (answer) => this.answered(answer),
      fail: (error) => this.failed(error, (name, given) => this.replace(given, name)),
      wait: (line) => notice(line),
    });
    this.near = el("div"); // names similar to the context
    $("query").replaceChildren(this.query.node, this.near, this.examples());
    $("options").replaceChildren(this.options.node);
    const tokens = count(model.num_hashes * model.num_buckets);
    const what = `${count(model.num_ids)} ${this.text ? "entries" : "names"}`;
    $("facts").textContent = `${model.name}: ${what}, each ${model.num_hashes} of ${tokens} tokens`;
    initTabs((tab) => this.store.change({ tab }));
    this.store = new Store({ k: model.limits.k, buckets: model.num_buckets }, fallback, (state) => this.show(state));
    this.show(this.store.state);
  }

  show(state) {
    const asked = JSON.stringify(queryOf(state, this.model));
    this.chips.show(state.context);
    this.blanks.show(state.text);
    this.options.show(state);
    showTab(state.tab);
    this.tried.hidden = !isEmpty(state, this.model) || !this.model.examples.length;
    const names = this.text ? state.text : state.context.map((name) => (name === null ? MASK : shown(name))).join(", ");
    document.title = names ? `${[...names].slice(0, 60).join("")} · Superbloom` : "Superbloom";
    this.showSimilar(state.context);
    if (asked !== this.asked) {
      this.asked = asked;
      message();
      if (isEmpty(state, this.model)) this.clear();
      else this.ask.ask(state);
    } else if (this.last) this.answers.setOpen(state.why);
    if (state.tab === "report") this.showReport();
    if (state.tab === "api") this.showApi();
  }

  // What opens to names that are similar to some names; null where answers may not stand in the context.
  similar(names, label) {
    if (!takesAnswers(this.model)) return null;
    const { limits } = this.model;
    const body = { names, k: Math.min(MOST_SIMILAR, limits.k) };
    return similarOf(label, {
      find: () => call("v1/similar", { body, onWait: notice }),
      add: (name) => {
        this.chips.add(name);
        this.chips.input.focus();
      },
      fail: handled,
      say,
    });
  }

  // It stays open while the context changes.
  showSimilar(context) {
    const names = [...new Set(context.filter((name) => name !== null))];
    if (JSON.stringify(names) === JSON.stringify(this.nearTo)) return;
    this.nearTo = names;
    const wasOpen = this.near.querySelector("details")?.open ?? false;
    const similar = names.length ? this.similar(names, "Names similar to the context") : null;
    if (similar) similar.open = wasOpen;
    this.near.replaceChildren(...(similar ? [similar] : []));
  }

  clear() {
    this.ask.stop();
    this.last = null;
    $("columns").hidden = true;
  }

  answered(answer) {
    this.last = answer;
    notice("");
    $("columns").hidden = false;
    $("columns").classList.remove("stale");
    $("columns").removeAttribute("aria-busy");
    this.answers.show(answer, this.store.state.why);
    this.certificate.show(answer.masks);
    say(summaryOf(answer));
  }

  // take(closest, given): what to do with one of the closest names the server offers.
  failed(error, take) {
    $("columns").removeAttribute("aria-busy");
    if (!(error instanceof ApiError)) throw error;
    if (
      handled(error, () => {
        this.asked = null;
        this.show(this.store.state);
      })
    )
      return;
    const near = Object.entries(error.closest ?? {}).flatMap(([given, names]) =>
      names.map((name) => ({ given, name })),
    );
    const buttons = near.map(({ given, name }) =>
      el("button", { type: "button", class: "quiet", onclick: () => take(name, given) }, nameOf(name)),
    );
    message(el("p", {}, error.message), el("div", { class: "row" }, buttons));
  }

  take(name) {
    this.chips.input.value = "";
    message();
    this.chips.add(name);
    this.chips.input.focus();
  }

  replace(given, name) {
    this.store.change({ context: this.store.state.context.map((each) => (each === given ? name : each)) });
    this.chips.input.focus();
  }

  examples() {
    const part = (name) => (name === null ? MASK : nameOf(name));
    const label = (example) => (this.text ? nameOf(example) : example.map((name, i) => [i > 0 && ", ", part(name)]));
    this.tried = el(
      "div",
      { class: "row examples" },
      el("span", { class: "soft" }, "Try"),
      this.model.examples.map((example) =>
        el(
          "button",
          {
            type: "button",
            class: "quiet",
            onclick: () => this.store.change(this.text ? { text: example } : { context: example }),
          },
          label(example),
        ),
      ),
    );
    return this.tried;
  }

  async showReport() {
    await this.fill("panel-report", "v1/report", (report) => reportOf(report, this.model));
  }

  async showApi() {
    await this.fill("panel-api", "openapi.json", (doc) => apiOf(doc, queryOf(this.store.state, this.model)));
  }

  // A tab is asked for when it is first opened; what the server says then stays.
  async fill(panel, path, make) {
    this.loaded ??= {};
    try {
      this.loaded[path] ??= await call(path, { onWait: notice });
      $(panel).replaceChildren(...make(this.loaded[path]));
    } catch (error) {
      if (!handled(error, () => this.fill(panel, path, make))) $(panel).replaceChildren(el("p", {}, error.message));
    }
  }
}

async function start() {
  try {
    const model = await call("v1/model", { onWait: notice });
    notice("");
    new Page(model);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (!handled(error, start)) notice(error.message, start);
  }
}

start();
