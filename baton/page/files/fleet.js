// The fleet: its figures over the window, its picture, its services, and what is open now.

import { keyed, node, say } from "/dom.js";
import { Chart } from "/chart.js";
import { clock, count, life, rate, stage, sum, time } from "/format.js";
import { requestColumn, workersColumn } from "/links.js";
import { chooseWindow, listen, live } from "/live.js";
import { FleetPicture } from "/picture.js";
import { KeyedTable } from "/table.js";

const WINDOWS = [[10, "10 s"], [60, "1 min"], [300, "5 min"]];
const perSecond = (value) => `${rate(value)}/s`;

const FIGURES = [
  { name: "Open requests", point: "open", show: count, value: (fleet) => sum(fleet.gateways, "num_open"), more: (fleet) => `${fleet.num_queued} in queue` },
  { name: "Requests", point: "requests", show: perSecond, value: (fleet) => sum(fleet.gateways, "requests_per_s"), more: (fleet) => {
    const failed = sum(fleet.gateways, "failed_per_s");
    return failed ? `${perSecond(failed)} failed` : "none failed";
  } },
  { name: "First token", point: "first_token", show: time, title: "Time from a request's arrival to its first token (TTFT), median", value: (fleet) => fleet.first_token.p50_s, more: (fleet) => `p95 ${time(fleet.first_token.p95_s)}` },
  { name: "Between tokens", point: "token_gap", show: time, title: "Time between two tokens of an answer (ITL), median", value: (fleet) => fleet.token_gap.p50_s, more: (fleet) => `p95 ${time(fleet.token_gap.p95_s)}` },
  { name: "Output tokens", point: "output", show: perSecond, value: (fleet) => sum(fleet.workers, "output_tokens_per_s"), more: () => "by all workers" },
  { name: "Prompt tokens", point: "prompt", show: perSecond, title: "Prompt tokens that were computed, not found in a cache", value: (fleet) => sum(fleet.workers, "prompt_tokens_per_s"), more: () => "computed" },
  { name: "Streams moved", title: "Streams that a failing worker lost and another one continued, since the start; and connections to workers that broke and went on", show: count, value: (fleet) => fleet.healed.num_moved, more: (fleet) => `${fleet.healed.num_resumed} resumed` },
];

class Figure {
  constructor(spec) {
    this.spec = spec;
    this.value = node("div", { class: "value" });
    this.more = node("div", { class: "more" });
    this.chart = new Chart((point) => {
      this.read = point;
      this.#sayMore();
    });
    this.element = node("div", { class: "figure card" },
      node("div", { class: "name", title: spec.title }, spec.name), this.value, this.more, spec.point ? this.chart.element : null);
  }

  update({ look }) {
    say(this.value, this.spec.show(this.spec.value(look.fleet)));
    this.usual = this.spec.more(look.fleet);
    if (this.spec.point) {
      const points = look.points.map((point) => ({ at: point.at, value: point[this.spec.point] }));
      this.chart.update(points, look.at_unix_s - look.window_s, look.at_unix_s);
    }
    this.#sayMore();
  }

  #sayMore() {
    say(this.more, this.read ? `${this.spec.show(this.read.value)} at ${clock(this.read.at)}` : this.usual);
  }
}

export function windowSwitch() {
  const buttons = WINDOWS.map(([seconds, name]) =>
    node("button", { type: "button", onclick: () => chooseWindow(seconds), "aria-pressed": String(live.windowS === seconds), "data-seconds": seconds }, name));
  const element = node("div", { class: "segments", role: "group", "aria-label": "Window of rates and charts" }, ...buttons);
  element.sync = () => buttons.forEach((button) => button.setAttribute("aria-pressed", String(Number(button.dataset.seconds) === live.windowS)));
  return element;
}

export const openColumns = [
  requestColumn(),
  { name: "tenant", width: "12%", text: (row) => row.tenant, wide: 1 },
  { name: "model", width: "12%", text: (row) => row.model, wide: 2 },
  { name: "stage", title: "Where it is now, and since when", width: "9.5rem", sync: (cell, row) => {
    const since = row.stage_age_s ?? 0;
    say(cell, row.stage === "decode" ? "decode" : `${stage(row.stage)} for ${time(since)}`);
    cell.classList.toggle("bad", row.stage !== "decode" && since > 5);
  } },
  { name: "age", number: true, width: "5.2rem", text: (row) => time(row.age_s) },
  { name: "prompt", number: true, wide: 1, title: "Prompt tokens", width: "5rem", text: (row) => count(row.num_prompt_tokens) },
  { name: "output", number: true, wide: 1, title: "Output tokens so far", width: "5rem", text: (row) => count(row.num_output_tokens) },
  workersColumn({ name: "worker", wide: 1, width: "12%" }),
];

const oldestFirst = (rows) => [...rows].sort((a, b) => b.age_s - a.age_s);
export const openTable = (empty, most = 50) => {
  const table = new KeyedTable(openColumns, (row) => row.request_id, { empty, label: "Open requests", most });
  return { element: table.element, update: (rows) => table.update(oldestFirst(rows)) };
};

function drawServices(element, look) {
  const ups = { ...look.fleet.others };
  for (const row of look.fleet.gateways) ups[row.name] = row.is_up;
  for (const name of Object.keys(look.lives)) {
    if (!(name in ups) && !look.fleet.workers.some((row) => row.name === name)) ups[name] = look.lives[name].is_running;
  }
  keyed(element, Object.entries(ups), ([name]) => name,
    ([name]) => node("a", { class: "service", href: `#/workers/${encodeURIComponent(name)}` }, node("span", { class: "dot" }), name, node("span", { class: "dim" })),
    (child, [name, isUp]) => {
      child.classList.toggle("down", !isUp);
      child.children[0].className = `dot ${isUp ? "good" : "bad"}`;
      say(child.children[1], life(look, name, isUp));
    });
}

export function fleetView() {
  const figures = FIGURES.map((spec) => new Figure(spec));
  const picture = new FleetPicture();
  const services = node("div", { class: "services" });
  const open = openTable("No request is open.", 50);
  const openNote = node("span", { class: "note dim" });
  const switcher = windowSwitch();
  const stop = listen((now) => {
    switcher.sync();
    if (!now.look) return;
    for (const figure of figures) figure.update(now);
    picture.update(now.look);
    drawServices(services, now.look);
    open.update(now.look.requests);
    const more = now.look.requests.length - 50;
    say(openNote, more > 0 ? `the oldest 50; ${more} more` : "oldest first");
  });
  const element = [
    node("section", { "aria-label": "Figures" },
      node("div", { class: "section-head" }, node("h1", { class: "grow" }, "Fleet"), switcher),
      node("div", { class: "figures" }, ...figures.map((figure) => figure.element))),
    node("section", { "aria-labelledby": "picture-heading" },
      node("div", { class: "section-head" }, node("h2", { id: "picture-heading", class: "grow" }, "Prefill, handoff, decode"), picture.legend),
      picture.element),
    node("section", { "aria-labelledby": "open-heading" },
      node("div", { class: "section-head" }, node("h2", { id: "open-heading" }, "Open requests"), openNote,
        node("a", { class: "note", href: "#/requests" }, "all requests")), open.element),
    node("section", { "aria-labelledby": "services-heading" },
      node("div", { class: "section-head" }, node("h2", { id: "services-heading" }, "Other services"), node("span", { class: "note dim" }, "up since, and how often started again")), services),
  ];
  return { element, title: "", leave: () => { stop(); picture.leave(); } };
}
