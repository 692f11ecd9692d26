// One request: what it was, where its time went, and why these workers; also while it runs.

import { ask, copyButton, node, say } from "/dom.js";
import { clock, count, rate, stage, time } from "/format.js";
import { workersText } from "/links.js";
import { shortName } from "/mode.js";
import { colours, Waterfall } from "/waterfall.js";

const EVERY_MS = 800;
// The whole request's span comes with the next export; after that nothing is expected.
const MOST_LOOKS_AFTER_END = 8;
const STATES = {
  running: ["runs", "busy"], ended: ["ended", "good"], unreported: ["end not reported yet", "busy"],
  expired: ["expired", ""], unknown: ["unknown", "bad"], unkept: ["unknown", "bad"],
};
const NOTHING = {
  running: "It has no finished spans yet.",
  expired: "This request ended, and its usage is recorded, but its spans are no longer kept: only those of the newest requests are.",
  unkept: "Nothing here knows a request with this id: it was never received, it was not traced, or its spans are no longer kept.",
  unknown: "Nothing here knows a request with this id: it was never received by this stack, or it came to another one.",
};
const PARTS = [["wait", "Wait for the prefill worker"], ["prefill", "Computing the prompt's tokens that are not cached"], ["handoff", "Moving KV blocks"],
  ["steps", "Waiting for the decode worker's step"], ["first_token", "All until the first token"], ["itl", "Slower tokens while this answer is written, weighed"],
  ["streams", "What it costs the streams that run there, weighed"], ["zone", "Price of another zone"], ["cost", "What the choice was judged by"]];

const facts = (pairs) => node("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
  .map(([name, value]) => node("div", {}, node("dt", {}, name), node("dd", {}, value))));

function factsOf(found) {
  const { row, running } = found;
  if (row) {
    return [["ended", row.outcome], ["took", time(row.seconds)], ["first token", time(row.first_token_s)],
      ["tokens/s", row.tokens_per_s === null ? "" : rate(row.tokens_per_s)], ["prompt", `${count(row.num_prompt_tokens)} tokens`],
      ["of it cached", count(row.num_cached_tokens)], ["output", `${count(row.num_output_tokens)} tokens`], ["attempts", row.num_attempts > 1 ? `${row.num_attempts} attempts` : ""],
      ["workers", workersText(row)], ["tenant", row.tenant], ["model", row.model], ["began", clock(row.started_unix_s)]];
  }
  if (running) {
    return [["stage", `${stage(running.stage)} for ${time(running.stage_age_s)}`], ["age", time(running.age_s)], ["prompt", `${count(running.num_prompt_tokens)} tokens`],
      ["output so far", `${count(running.num_output_tokens)} tokens`], ["worker", running.workers.join(", ")], ["tenant", running.tenant], ["model", running.model], ["gateway", running.gateway]];
  }
  return [];
}

function pickTable(pick, number, total) {
  const used = PARTS.filter(([part]) => part === "cost" || part === "first_token" || [pick.chosen, ...pick.others].some((choice) => choice?.parts_s[part] > 0));
  const cell = (choice, part) => time(part === "cost" ? choice.cost_s : part === "first_token" ? choice.first_token_s : choice.parts_s[part]);
  const workers = (choice, named) => [choice.prefill, choice.decode].filter(Boolean).map(named).join(" ⇢ ");
  const rowOf = (choice, className, note) => node("tr", { class: className },
    node("td", { title: workers(choice, String) }, workers(choice, shortName), note ? node("span", { class: "dim" }, ` ${note}`) : null),
    node("td", {}, count(choice.num_cached_tokens)), ...used.map(([part]) => node("td", {}, cell(choice, part))));
  const measured = pick.measured_s;
  const rows = [];
  if (pick.chosen) rows.push(rowOf(pick.chosen, "chosen", pick.chosen.is_measured ? "chosen" : "chosen, rates guessed"));
  if (pick.chosen && Object.keys(measured).length) {
    rows.push(node("tr", { class: "measured" }, node("td", {}, "measured then"), node("td", {}, ""), ...used.map(([part]) => node("td", {}, part in measured ? time(measured[part]) : ""))));
  }
  rows.push(...pick.others.map((choice) => rowOf(choice, "", "")));
  const notes = [pick.remark, ...Object.entries(pick.left_out).map(([worker, reason]) => `${worker} left out: ${reason}`), pick.num_omitted ? `${pick.num_omitted} more choices not shown` : ""].filter(Boolean);
  return node("div", { class: "picks card", tabindex: "0", role: "region", "aria-label": `Pick ${number}` },
    node("table", { "aria-label": `Choices of pick ${number}` },
      node("thead", {}, node("tr", {}, node("th", { scope: "col" }, total > 1 ? `pick ${number} of ${total}` : "workers"), node("th", { scope: "col" }, "cached tokens"),
        ...used.map(([part, title]) => node("th", { scope: "col", title }, part.replace("_", " "))))),
      node("tbody", {}, ...rows)),
    notes.length ? node("p", { class: "note dim", style: { padding: ".4rem .7rem" } }, notes.join("; ")) : null);
}


export function traceView(id) {
  const state = node("span", { class: "tag" });
  const summary = node("div");
  const nothing = node("p", { class: "dim" });
  const waterfall = new Waterfall();
  const whole = node("button", { type: "button", "aria-pressed": "true", onclick: () => zoom(false) }, "Whole");
  const close = node("button", { type: "button", "aria-pressed": "false", onclick: () => zoom(true) }, "To the first token");
  const tools = node("div", { class: "segments", role: "group", "aria-label": "Time that is shown" }, whole, close);
  const times = node("section", { "aria-labelledby": "times-heading", hidden: true },
    node("div", { class: "section-head" }, node("h2", { id: "times-heading", class: "grow" }, "Where its time went"), colours(), tools), waterfall.element);
  const picks = node("div", { class: "thread" });
  const why = node("section", { "aria-labelledby": "why-heading", hidden: true },
    node("div", { class: "section-head" }, node("h2", { id: "why-heading" }, "Why these workers"), node("span", { class: "note dim" }, "seconds that the router predicted for each choice, by part")), picks);
  let timer = 0, looks = 0, isZoomed = false, latest = null, isLeft = false, drawnPicks = "";

  function zoom(wanted) {
    isZoomed = wanted;
    whole.setAttribute("aria-pressed", String(!wanted));
    close.setAttribute("aria-pressed", String(wanted));
    if (latest) draw(latest);
  }

  function draw(found) {
    latest = found;
    const [words, kind] = STATES[found.state];
    say(state, words);
    state.className = `tag ${found.row?.failed ? "bad" : kind}`;
    const fresh = facts(factsOf(found));
    if (summary.textContent !== fresh.textContent) summary.replaceChildren(fresh);
    times.hidden = !found.spans.length;
    say(nothing, found.spans.length ? "" : NOTHING[found.state] ?? "");
    const first = found.row?.first_token_s ?? null;
    tools.hidden = first === null;
    if (found.spans.length) {
      const originNs = found.row ? found.row.started_unix_s * 1e9 : null;
      waterfall.update(found.spans, { firstTokenS: first, originNs, untilS: isZoomed && first ? first * 1.15 : null, nowNs: found.running ? Date.now() * 1e6 : null });
    }
    const explained = found.explanation?.picks ?? [];
    why.hidden = !explained.length;
    const text = JSON.stringify(explained);
    if (text !== drawnPicks) {
      drawnPicks = text;
      picks.replaceChildren(...explained.map((pick, index) => pickTable(pick, index + 1, explained.length)));
    }
  }

  async function look() {
    let found = null;
    try {
      found = await ask(`/api/requests/${encodeURIComponent(id)}`);
    } catch {
      // The frame says that the stack is away.
    }
    if (isLeft) return;
    if (found) draw(found);
    looks += found && found.state !== "running" ? 1 : 0;
    if (!found || found.state === "running" || looks < MOST_LOOKS_AFTER_END) timer = setTimeout(look, EVERY_MS);
  }

  look();
  const element = [
    node("section", {},
      node("p", { class: "note" }, node("a", { href: "#/requests" }, "← Requests")),
      node("div", { class: "title-id" }, node("h1", { class: "id" }, id), copyButton(id, "Copy the request id"), state), ),
    node("section", { "aria-label": "Summary" }, summary, nothing), times, why,
  ];
  return { element, title: id.slice(0, 16), leave: () => { isLeft = true; clearTimeout(timer); } };
}
