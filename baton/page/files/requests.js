// The requests that ended, by filter, and those that are open. The filter is part of the address.

import { ask, node, say } from "/dom.js";
import { clock, cost, count, rate, time } from "/format.js";
import { openTable } from "/fleet.js";
import { outcomeColumn, requestColumn, workersColumn } from "/links.js";
import { listen } from "/live.js";
import { KeyedTable } from "/table.js";

const EVERY_MS = 2000;
const SINCE = [["", "any time"], ["60", "last minute"], ["600", "last 10 min"], ["3600", "last hour"], ["86400", "last day"]];

const number = (value) => (value === null || value === undefined || value === "" ? "" : count(value));

const COLUMNS = [
  requestColumn(),
  { name: "began", width: "5.4rem", wide: 1, text: (row) => clock(row.started_unix_s) },
  { name: "tenant", wide: 2, width: "6rem", text: (row) => row.tenant },
  { name: "model", wide: 2, width: "8rem", text: (row) => row.model },
  outcomeColumn,
  { name: "took", number: true, width: "5.2rem", text: (row) => time(row.seconds) },
  { name: "TTFT", number: true, width: "5.2rem", title: "Time to first token", text: (row) => time(row.first_token_s) },
  { name: "tok/s", number: true, wide: 1, width: "4.2rem", title: "Output tokens a second, after the first", text: (row) => rate(row.tokens_per_s) },
  { name: "prompt", number: true, wide: 1, width: "4.6rem", title: "Prompt tokens", text: (row) => number(row.num_prompt_tokens) },
  { name: "cached", number: true, wide: 2, width: "4.6rem", class: "gives-way", title: "Prompt tokens that no worker had to compute", text: (row) => number(row.num_cached_tokens) },
  { name: "output", number: true, wide: 1, width: "4.6rem", title: "Output tokens", text: (row) => number(row.num_output_tokens) },
  { name: "cost", number: true, wide: 2, width: "6.2rem", class: "priced-only", title: "In the currency of the price list", text: (row) => cost(row.cost) },
  workersColumn({ name: "workers", wide: 1, width: "13rem", title: "The prefill worker and the decode workers, in order" }),
];

export function recentTable(empty, most) {
  return new KeyedTable(COLUMNS, (row) => row.request_id, { empty, label: "Requests", most });
}

function select(name, label, values, onchange) {
  const element = node("select", { id: `filter-${name}`, onchange });
  element.fill = (found, chosen) => {
    const options = [["", "all"], ...found];
    if (chosen && !options.some(([value]) => value === chosen)) options.push([chosen, chosen]);
    const text = JSON.stringify(options);
    if (element.dataset.options !== text) {
      element.dataset.options = text;
      element.replaceChildren(...options.map(([value, words]) => node("option", { value }, words)));
    }
    element.value = chosen;
  };
  return [element, node("div", {}, node("label", { for: `filter-${name}` }, label), element)];
}

export function requestsView(params) {
  const change = () => {
    const entries = Object.entries({ text: search.value.trim(), tenant: tenant.value, model: model.value, outcome: outcome.value, slower: slower.value, since: since.value });
    const chosen = new URLSearchParams(entries.filter(([, value]) => value));
    window.location.hash = `#/requests${chosen.size ? `?${chosen}` : ""}`;
  };
  const search = node("input", { id: "filter-text", type: "search", placeholder: "a request's id, or its beginning", onchange: change, onkeydown: (event) => event.key === "Enter" && change() });
  const slower = node("input", { id: "filter-slower", type: "number", min: "0", step: "0.1", placeholder: "seconds", onchange: change, style: { width: "7rem" } });
  const [tenant, tenantField] = select("tenant", "Tenant", [], change);
  const [model, modelField] = select("model", "Model", [], change);
  const [outcome, outcomeField] = select("outcome", "Ended", [], change);
  const [since, sinceField] = select("since", "Began", [], change);
  const open = openTable("No request is open.", 10);
  const recent = recentTable("No request is like that.", 200);
  const note = node("span", { class: "note dim" });
  const openNote = node("span", { class: "note dim" });
  let isLeft = false, timer = 0, asked = 0;

  function chosenFrom(fresh) {
    params = fresh;
    const get = (name) => params.get(name) ?? "";
    search.value = get("text");
    slower.value = get("slower");
    tenant.fill([], get("tenant"));
    model.fill([], get("model"));
    outcome.fill([["failed", "failed"]], get("outcome"));
    since.fill(SINCE.slice(1), get("since"));
    recent.reset();
    look();
  }

  async function look() {
    clearTimeout(timer);
    const own = ++asked;
    try {
      const found = await ask(`/api/requests?${params}`);
      if (isLeft || own !== asked) return;
      const same = (values) => values.map((value) => [value, value]);
      tenant.fill(same(found.tenants), params.get("tenant") ?? "");
      model.fill(same(found.models), params.get("model") ?? "");
      outcome.fill([["failed", "failed"], ...same(found.outcomes)], params.get("outcome") ?? "");
      // Without a price list nothing has a cost.
      recent.element.classList.toggle("priced", found.rows.some((row) => cost(row.cost)));
      recent.update(found.rows);
      say(note, found.num_found > found.rows.length ? `newest ${found.rows.length} of ${count(found.num_found)}` : `${found.num_found} found`);
    } catch {
      // The frame says that the stack is away.
    }
    if (!isLeft && own === asked) timer = setTimeout(look, EVERY_MS);
  }

  const stop = listen(({ look: now }) => {
    if (!now) return;
    open.update(now.requests);
    say(openNote, now.requests.length > 10 ? `the oldest 10 of ${count(now.requests.length)}` : "oldest first");
  });
  chosenFrom(params);
  const element = [
    node("section", {}, node("div", { class: "section-head" }, node("h1", {}, "Requests")),
      node("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); change(); }, role: "search" },
        node("div", { class: "search" }, node("label", { for: "filter-text" }, "Search"), search), tenantField, modelField, outcomeField,
        node("div", {}, node("label", { for: "filter-slower" }, "Slower than"), slower), sinceField,
        node("a", { class: "button", href: "#/requests" }, "Clear"))),
    node("section", { "aria-labelledby": "open-heading" }, node("div", { class: "section-head" }, node("h2", { id: "open-heading" }, "Open"), openNote), open.element),
    node("section", { "aria-labelledby": "ended-heading" }, node("div", { class: "section-head" }, node("h2", { id: "ended-heading" }, "Ended"), note), recent.element),
  ];
  return { element, title: "Requests", query: chosenFrom, leave: () => { isLeft = true; clearTimeout(timer); stop(); } };
}
