// One answer of the playground: its text as it comes, its life below, and what can be done to it.

import { ask, copy, node, say } from "/dom.js";
import { count, rate, time } from "/format.js";
import { Lanes } from "/lanes.js";
import { requestUrl } from "/links.js";
import { curlOf, pythonOf } from "/snippets.js";
import { nowS, stagesOf, streamed } from "/stream.js";

const LOOK_MS = 400;
// Spans come with the next export.
const MOST_LOOKS_AFTER_END = 12;

export class Answer {
  constructor(body, baseUrl) {
    this.body = body;
    this.baseUrl = baseUrl;
    this.text = "";
    this.calls = [];
    this.life = { startS: nowS(), nowS: nowS(), stages: [], ticks: [], picks: [], spans: null, losses: [] };
    this.abort = new AbortController();
    this.words = node("div", { class: "answer-text writing", "aria-live": "polite" });
    this.callRows = node("div", { class: "life" });
    this.problem = node("p", { class: "bad", role: "alert", hidden: true });
    this.lanes = new Lanes();
    this.facts = node("div", { class: "answer-facts" });
    this.kill = node("button", { class: "small danger", type: "button", hidden: true, onclick: () => this.#kill() });
    this.stop = node("button", { class: "small", type: "button", onclick: () => this.abort.abort() }, "Stop");
    this.trace = node("a", { class: "button small", hidden: true }, "Trace");
    const copier = (label, text) => {
      const button = node("button", { class: "small", type: "button" }, label);
      button.addEventListener("click", async () => {
        await copy(text());
        say(button, "Copied");
        setTimeout(() => say(button, label), 1200);
      });
      return button;
    };
    const actions = node("div", { class: "answer-actions" }, this.kill, this.stop, this.trace, node("span", { class: "grow" }),
      copier("Copy as curl", () => curlOf(this.baseUrl, this.body)), copier("Copy as Python", () => pythonOf(this.baseUrl, this.body)));
    this.element = node("article", { class: "turn-answer card", "aria-label": "Answer" }, this.words, this.callRows, this.problem, this.lanes.element, this.facts, actions);
  }

  get isOver() {
    return this.stop.hidden;
  }

  get worker() {
    return this.life.picks.at(-1)?.decode ?? "";
  }

  // Returns when the answer is there, whole or not.
  async run() {
    this.#draw();
    const looking = this.#keepLooking();
    try {
      await streamed(this.body, this.abort.signal, {
        head: (headers) => this.#head(headers),
        delta: (delta, atS) => this.#delta(delta, atS),
        usage: (usage) => (this.usage = usage),
        finish: (reason) => (this.reason = reason),
      });
    } catch (error) {
      this.#fail(this.abort.signal.aborted ? "stopped" : error.message);
    }
    this.endS = nowS();
    this.stop.hidden = this.kill.hidden = true;
    this.words.classList.remove("writing");
    this.#draw();
    await looking;
  }

  #head(headers) {
    this.requestId = headers.get("x-request-id") ?? "";
    this.life.stages = stagesOf(headers);
    if (this.requestId) {
      this.trace.href = requestUrl(this.requestId);
      this.trace.hidden = false;
    }
  }

  #delta(delta, atS) {
    this.life.ticks.push(atS);
    this.text += delta.content ?? "";
    for (const call of delta.tool_calls ?? []) {
      const own = (this.calls[call.index] ??= { id: "", name: "", text: "" });
      own.id ||= call.id ?? "";
      own.name += call.function?.name ?? "";
      own.text += call.function?.arguments ?? "";
    }
    this.#drawSoon();
  }

  #fail(message) {
    this.problem.hidden = false;
    say(this.problem, message);
  }

  #drawSoon() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.#draw();
    });
  }

  #draw() {
    say(this.words, this.text);
    this.callRows.replaceChildren(...this.calls.filter(Boolean).map((call) => node("div", { class: "tool-call" }, `${call.name}(${call.text})`)));
    this.life.nowS = this.endS ?? nowS();
    this.lanes.update(this.life);
    const { ticks, startS, picks } = this.life;
    // Once the gateway has told, its times count: a browser may have been busy.
    const told = this.row;
    const first = told?.first_token_s ?? (ticks.length ? ticks[0] - startS : null);
    const seconds = ticks.length > 1 ? ticks.at(-1) - ticks[0] : 0;
    const speed = told ? told.tokens_per_s : seconds ? (ticks.length - 1) / seconds : null;
    const last = picks.at(-1);
    const fact = (name, value) => node("span", {}, name, " ", node("b", {}, value));
    const parts = [];
    if (first !== null) parts.push(fact("first token", time(first)));
    if (speed !== null) parts.push(fact("speed", `${rate(speed)} tok/s`));
    parts.push(fact("tokens", count(this.usage?.completion_tokens ?? ticks.length)));
    if (this.usage) parts.push(fact("cached", `${count(this.usage.prompt_tokens_details?.cached_tokens ?? 0)} of ${count(this.usage.prompt_tokens)} prompt tokens`));
    if (last) parts.push(fact("workers", last.prefill ? `${last.prefill} ⇢ ${picks.map((pick) => pick.decode).join(" → ")}` : last.decode));
    if (this.life.losses.length) parts.push(node("span", { class: "tag good" }, this.reason ? "the stream survived" : "the stream goes on"));
    this.facts.replaceChildren(...parts);
    this.kill.hidden = this.isOver || !this.worker || !ticks.length;
    if (!this.kill.disabled) say(this.kill, `Kill ${this.worker}`);
  }

  async #kill() {
    const name = this.worker;
    this.kill.disabled = true;
    say(this.kill, `Killing ${name} …`);
    try {
      await ask(`/api/workers/${encodeURIComponent(name)}/kill`, { method: "POST" });
      say(this.kill, `${name} was killed`);
    } catch (error) {
      this.#fail(error.message);
    }
  }

  async #keepLooking() {
    for (let left = MOST_LOOKS_AFTER_END; left > 0; left -= this.isOver ? 1 : 0) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      if (!this.isOver) this.#drawSoon();
      if (!this.requestId) continue;
      try {
        this.#learn(await ask(`/api/requests/${encodeURIComponent(this.requestId)}`));
      } catch {
        continue;
      }
      if (this.isOver && this.life.spans?.some((span) => span.kind === "request")) break;
    }
    this.#draw();
  }

  #learn(found) {
    const picks = found.explanation?.picks.map(({ decode, prefill }) => ({ decode, prefill })) ?? [];
    // The one before the last failed: its last token was just before the longest silence of late.
    while (picks.length - 1 > this.life.losses.length && this.life.ticks.length) this.life.losses.push(this.#loss());
    if (picks.length > this.life.picks.length && this.life.picks.length && this.kill.disabled) this.kill.disabled = false;
    if (picks.length) this.life.picks = picks;
    if (this.isOver && found.spans.length) this.life.spans = found.spans;
    if (this.isOver) this.row = found.row;
    this.#drawSoon();
  }

  #loss() {
    const since = this.life.losses.at(-1) ?? 0;
    const ticks = this.life.ticks.filter((tick) => tick > since);
    let at = ticks.at(-1), longest = nowS() - at;
    for (let index = 1; index < ticks.length; index += 1) {
      if (ticks[index] - ticks[index - 1] > longest) [at, longest] = [ticks[index - 1], ticks[index] - ticks[index - 1]];
    }
    return at;
  }
}
