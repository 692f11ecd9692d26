// The local page: asks this machine's web service once a second and draws what it says.
// Everything from outside becomes text nodes, never markup.

const EVERY_MS = 1000;
const KEPT = 120;
const history = new Map();
const at = (id) => document.getElementById(id);

function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

const count = (value) => Math.round(value).toLocaleString("en");
const share = (value) => `${Math.round(value * 100)} %`;

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

function line(name, value) {
  const values = history.get(name) ?? [];
  values.push(value ?? 0);
  if (values.length > KEPT) values.shift();
  history.set(name, values);
  const most = Math.max(...values, 1e-9);
  const points = values.map((y, x) => `${KEPT - values.length + x},${26 - (y / most) * 24}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT} 28`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
  svg.append(path);
  return svg;
}

function figure(name, value, shown, more = "") {
  return node(
    "div",
    { class: "figure" },
    node("div", { class: "name" }, name),
    node("div", { class: "value" }, shown),
    node("div", { class: "more" }, more),
    line(name, value),
  );
}

const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);

function drawFigures(fleet) {
  const failed = sum(fleet.gateways, "failed_per_s");
  const rate = sum(fleet.gateways, "requests_per_s");
  const open = sum(fleet.gateways, "num_open");
  const output = sum(fleet.workers.filter((row) => row.role === "decode"), "output_tokens_per_s");
  const prompt = sum(fleet.workers, "prompt_tokens_per_s");
  const healed = fleet.healed;
  at("figures").replaceChildren(
    figure("Open requests", open, count(open), `${fleet.num_queued} queued`),
    figure("Requests", rate, `${rate.toFixed(1)}/s`, failed ? `${failed.toFixed(1)}/s failed` : ""),
    figure("First token", fleet.first_token.p50_s, time(fleet.first_token.p50_s), `p95 ${time(fleet.first_token.p95_s)}`),
    figure("Between tokens", fleet.token_gap.p50_s, time(fleet.token_gap.p50_s), `p95 ${time(fleet.token_gap.p95_s)}`),
    figure("Output tokens", output, `${count(output)}/s`),
    figure("Prompt tokens", prompt, `${count(prompt)}/s`, "not cached"),
    figure("Streams migrated", healed.num_moved, count(healed.num_moved), `${healed.num_resumed} resumed`),
  );
}

function drawAlarm(fleet) {
  const down = [...fleet.gateways, ...fleet.workers].filter((row) => !row.is_up).map((row) => row.name);
  down.push(...Object.entries(fleet.others).filter(([, up]) => !up).map(([name]) => name));
  const parts = [];
  if (down.length) parts.push(`Down: ${down.join(", ")}.`);
  const violations = Object.entries(fleet.violations);
  if (violations.length) parts.push(`Violations: ${violations.map(([check, n]) => `${check} ${n}`).join(", ")}.`);
  at("alarm").hidden = parts.length === 0;
  at("alarm").textContent = parts.join(" ");
}

// columns: [heading, cell of a row, whether it is a number]
function table(id, columns, rows, nothing) {
  const head = node("tr", {}, ...columns.map(([name, , number]) => node("th", { class: number ? "number" : "", scope: "col" }, name)));
  const body = rows.map((row) =>
    node("tr", {}, ...columns.map(([, cell, number]) => node("td", { class: number ? "number" : "" }, cell(row)))),
  );
  if (!rows.length) body.push(node("tr", {}, node("td", { class: "empty", colspan: columns.length }, nothing)));
  at(id).replaceChildren(node("thead", {}, head), node("tbody", {}, ...body));
}

function pool(row) {
  const bar = node("span", { class: "pool", role: "img", "aria-label": `${share(row.kv_share)} used, ${share(row.promised_share)} promised` });
  for (const [kind, part] of [["used", row.kv_share], ["promised", row.promised_share]]) {
    const piece = node("span", { class: kind });
    piece.style.width = `${Math.min(part, 1) * 100}%`;
    bar.append(piece);
  }
  return node("span", { title: `${share(row.promised_share)} promised` }, bar, share(row.kv_share));
}

function drawWorkers(rows) {
  table("workers", [
    ["worker", (row) => (row.is_up ? row.name : node("span", { class: "bad" }, `${row.name} is down`))],
    ["model", (row) => row.model],
    ["running", (row) => row.num_running, true],
    ["waiting", (row) => row.num_waiting, true],
    ["parked", (row) => row.num_parked, true],
    ["KV blocks", pool],
    ["prompt/s", (row) => count(row.prompt_tokens_per_s), true],
    ["output/s", (row) => count(row.output_tokens_per_s), true],
    ["cache hits", (row) => (row.hit_share === null ? "" : share(row.hit_share)), true],
  ], rows, "no workers");
}

const opener = (id) => node("button", { class: "id", type: "button", onclick: () => show(id) }, id);

function drawOpen(rows) {
  table("open", [
    ["request", (row) => node("span", { class: "id" }, row.request_id)],
    ["tenant", (row) => row.tenant],
    ["model", (row) => row.model],
    ["stage", (row) => row.stage],
    ["age", (row) => time(row.age_s), true],
    ["prompt", (row) => count(row.num_prompt_tokens), true],
    ["output", (row) => count(row.num_output_tokens), true],
    ["worker", (row) => row.workers.join(", ")],
  ], rows.slice(0, 50), "no open requests");
}

function drawRecent(rows) {
  table("recent", [
    ["request", (row) => opener(row.request_id)],
    ["began", (row) => new Date(row.started_unix_s * 1000).toLocaleTimeString()],
    ["model", (row) => row.model],
    ["ended", (row) => node("span", { class: row.failed ? "bad" : "" }, row.outcome)],
    ["took", (row) => time(row.seconds), true],
    ["prompt", (row) => count(row.num_prompt_tokens), true],
    ["output", (row) => count(row.num_output_tokens), true],
    ["attempts", (row) => row.num_attempts, true],
  ], rows.slice(0, 30), "no requests yet");
}

function inOrder(spans) {
  const known = new Set(spans.map((span) => span.span_id));
  const root = spans.find((span) => !span.parent_id);
  const below = new Map();
  for (const span of [...spans].sort((a, b) => a.start_ns - b.start_ns || b.end_ns - a.end_ns)) {
    // A killed process has not exported its own spans: their children go below the request's span.
    const parent = known.has(span.parent_id) ? span.parent_id : span === root || !root ? "" : root.span_id;
    below.set(parent, [...(below.get(parent) ?? []), span]);
  }
  const walk = (parent, depth) => (below.get(parent) ?? []).flatMap((span) => [[span, depth], ...walk(span.span_id, depth + 1)]);
  return walk("", 0);
}

const ATTEMPT = "baton.epoch";

// The difference between two spans of one name: where each ran, in which attempt, and why.
function whereabouts(span) {
  const own = span.attributes;
  const parts = [own["baton.worker_id"] ?? span.service];
  if (own[ATTEMPT] > 1) parts.push(`attempt ${own[ATTEMPT]}`);
  if (own["baton.lost.worker_id"]) parts.push(`off ${own["baton.lost.worker_id"]}: ${own["baton.lost.reason"]}`);
  return parts.join(", ");
}

function spanRow(span, depth, start, total) {
  const where = whereabouts(span);
  const name = node("span", { class: "name", title: `${span.name} ${where}` }, span.name, node("span", { class: "service" }, where));
  name.style.paddingLeft = `${depth * 14}px`;
  const bar = node("span", { class: "bar" });
  bar.style.left = `${((span.start_ns - start) / total) * 100}%`;
  bar.style.width = `${((span.end_ns - span.start_ns) / total) * 100}%`;
  const head = node("summary", { class: "span" }, name,
    node("span", { class: "track" }, bar), node("span", { class: "time" }, time((span.end_ns - span.start_ns) / 1e9)));
  const rows = Object.entries({ "begins after": time((span.start_ns - start) / 1e9), ...span.attributes })
    .map(([key, value]) => node("div", {}, node("span", { class: "key" }, key), value));
  const kind = `${span.service} ${span.name === "move" ? "move" : ""} ${span.failed ? "failed" : ""}`;
  return node("details", { class: kind }, head, node("div", { class: "attributes" }, ...rows));
}

function ruler(total) {
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => {
    const mark = node("span", {}, part ? time((total * part) / 1e9) : "0");
    mark.style.left = `${part * 100}%`;
    return mark;
  });
  return node("div", { class: "span ruler" }, node("span"), node("span", { class: "marks" }, ...marks), node("span"));
}

function summaryOf(spans) {
  const root = spans.find((span) => span.service === "gateway" && span.attributes["baton.outcome"]);
  if (!root) return "its gateway has not reported its end";
  const own = root.attributes;
  const attempts = own["baton.num_attempts"];
  return [
    own["gen_ai.request.model"],
    `${time((root.end_ns - root.start_ns) / 1e9)}`,
    `ended: ${own["baton.outcome"]}`,
    `${own["gen_ai.usage.input_tokens"]} tokens in, ${own["gen_ai.usage.output_tokens"]} out`,
    attempts > 1 ? `${attempts} attempts` : "",
    `trace ${root.trace_id}`,
  ].filter(Boolean).join(" · ");
}

async function show(id) {
  const spans = await (await fetch(`/api/requests/${encodeURIComponent(id)}`)).json();
  at("waterfall-title").textContent = `Request ${id}`;
  at("waterfall-summary").textContent = spans.length ? summaryOf(spans) : "";
  if (spans.length) {
    const start = Math.min(...spans.map((span) => span.start_ns));
    const total = Math.max(...spans.map((span) => span.end_ns)) - start || 1;
    at("spans").replaceChildren(ruler(total), ...inOrder(spans).map(([span, depth]) => spanRow(span, depth, start, total)));
  } else {
    at("spans").replaceChildren("No spans of this request are kept.");
  }
  if (!at("waterfall").open) at("waterfall").showModal();
  window.location.hash = id;
}

async function refresh() {
  try {
    const [look, recent] = await Promise.all(["/api/fleet", "/api/requests"].map(async (path) => (await fetch(path)).json()));
    at("state").textContent = look.stack ? `as of ${new Date().toLocaleTimeString()}` : "no stack runs";
    if (look.stack) {
      at("stack").textContent = look.stack;
      drawAlarm(look.fleet);
      drawFigures(look.fleet);
      drawWorkers(look.fleet.workers);
      drawOpen(look.requests);
    }
    drawRecent(recent);
  } catch {
    at("state").textContent = "the stack's web service does not answer";
  }
}

at("close").addEventListener("click", () => at("waterfall").close());
at("waterfall").addEventListener("close", () => window.history.replaceState(null, "", window.location.pathname));

async function live() {
  await refresh();
  setTimeout(live, EVERY_MS);
}

live();
if (window.location.hash.length > 1) show(decodeURIComponent(window.location.hash.slice(1)));
