// A place to talk to the model and to see what the fleet does meanwhile.
//
// What was said is kept in this tab's memory only, for as long as the page is not reloaded.

import { ask, node, say } from "/dom.js";
import { Answer } from "/answer.js";
import { chatSettings } from "/settings.js";
import { crowdBox } from "/crowd.js";
import { refresh } from "/live.js";

const STARTERS = ["What is TTFT?", "Tell me a story", "Explain backpressure in simple terms."];
// Turns outlive a visit to another view.
const kept = { thread: null, answers: [], settings: null };

export function playgroundView() {
  kept.settings ??= chatSettings();
  kept.thread ??= node("div", { class: "thread" });
  const settings = kept.settings;
  const thread = kept.thread;
  const text = node("textarea", { rows: "1", placeholder: "Ask something", "aria-label": "Your message", autofocus: true });
  const send = node("button", { class: "primary", type: "submit" }, "Send");
  const problem = node("p", { class: "bad", role: "alert", hidden: true });
  const welcome = node("div", { class: "welcome" },
    node("h2", {}, "Talk to the model"),
    node("p", {}, "Each answer shows its life below it: which worker read the prompt, how its KV cache was handed over, and every token of the worker that writes. Kill that worker in mid-sentence and watch the stream go on."),
    node("div", { class: "starters" }, ...STARTERS.map((starter) => node("button", { type: "button", onclick: () => { text.value = starter; submit(); } }, starter))));

  function showWelcome() {
    welcome.hidden = thread.childElementCount > 0;
  }

  async function submit() {
    const content = text.value.trim();
    if (!content || kept.answers.some((answer) => !answer.isOver)) return;
    problem.hidden = true;
    let options;
    try {
      options = settings.read();
    } catch (error) {
      problem.hidden = false;
      return say(problem, error.message);
    }
    text.value = "";
    grow();
    const turn = { role: "user", content };
    const answer = new Answer({ model: options.model, messages: [...options.system, ...history(), turn], ...options.sampling }, settings.baseUrl);
    answer.turn = turn;
    kept.answers.push(answer);
    thread.append(node("div", { class: "turn-user" }, content), answer.element);
    showWelcome();
    answer.element.scrollIntoView({ block: "nearest" });
    refresh();
    send.disabled = true;
    const follow = setInterval(() => isNearEnd() && window.scrollTo(0, document.body.scrollHeight), 200);
    const done = answer.run();
    while (!answer.isOver) await new Promise((resolve) => setTimeout(resolve, 50));
    clearInterval(follow);
    send.disabled = false;
    await done;
  }

  // Answers that failed are no part of the talk; a tool's call has no result here, so it ends there.
  function history() {
    return kept.answers.filter((answer) => answer.text && answer.reason && !answer.calls.length)
      .flatMap((answer) => [answer.turn, { role: "assistant", content: answer.text }]);
  }

  const isNearEnd = () => window.innerHeight + window.scrollY > document.body.scrollHeight - 160;

  function grow() {
    text.style.height = "auto";
    text.style.height = `${text.scrollHeight}px`;
  }

  text.addEventListener("input", grow);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  const clear = node("button", { type: "button", class: "small", onclick: () => {
    kept.answers.forEach((answer) => answer.abort.abort());
    kept.answers = [];
    thread.replaceChildren();
    showWelcome();
  } }, "New talk");
  const form = node("form", { class: "card", onsubmit: (event) => { event.preventDefault(); submit(); } }, text, send);
  const crowd = crowdBox(() => settings.model);
  showWelcome();
  ask("/api/models").then((found) => settings.fill(found), (error) => { problem.hidden = false; say(problem, error.message); });
  const side = node("aside", { class: "settings card", "aria-label": "Settings" },
    node("div", { class: "row" }, node("h2", { class: "grow" }, "Settings"), clear), settings.element, crowd.element);
  const element = node("div", { class: "playground" }, node("h1", { class: "unseen" }, "Playground"),
    node("div", { class: "grow" }, welcome, thread, node("div", { class: "composer" }, problem, form)), side);
  return { element, title: "Playground", leave: crowd.leave, entered: () => text.focus() };
}
