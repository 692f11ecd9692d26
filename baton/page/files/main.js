// The frame of the page: which view an address means, what is wrong with the stack, and the clock.

import { ask, node, say } from "/dom.js";
import { clock } from "/format.js";
import { keepLooking, listen, refresh } from "/live.js";
import { fleetView } from "/fleet.js";
import { mode } from "/mode.js";
import { playgroundView } from "/playground.js";
import { requestsView } from "/requests.js";
import { tenantsView } from "/tenants.js";
import { traceView } from "/trace.js";
import { workerView } from "/worker.js";

const at = (id) => document.getElementById(id);
const ROUTES = [
  [/^$/, "fleet", fleetView],
  [/^playground$/, "playground", playgroundView],
  [/^requests$/, "requests", requestsView],
  [/^requests\/(.+)$/, "requests", traceView],
  [/^tenants$/, "tenants", tenantsView],
  [/^workers\/(.+)$/, "fleet", workerView],
].filter(([, name]) => mode.views.includes(name));

let shown = { leave: () => {}, address: null };

function show() {
  const hash = window.location.hash.slice(1);
  // Addresses that older stacks gave out: the request's id alone.
  if (/^req_/.test(hash)) return window.location.replace(`#/requests/${hash}`);
  const [path, query = ""] = hash.replace(/^\//, "").split("?");
  const params = new URLSearchParams(query);
  if (shown.path === path && shown.query) return shown.query(params);
  shown.leave();
  const route = ROUTES.find(([pattern]) => pattern.test(path));
  const [pattern, name, view] = route ?? [/^/, "", () => ({ element: node("p", {}, "There is no such view."), title: "" })];
  const found = view(...(pattern.exec(path)?.slice(1) ?? []).map(decodeURIComponent), params);
  shown = { leave: () => {}, ...found, path };
  at("view").replaceChildren(...[found.element].flat());
  document.title = found.title ? `${found.title} · Baton` : "Baton";
  for (const link of document.querySelectorAll(".top nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  found.entered?.();
}

function downNames(look) {
  const down = [...look.fleet.gateways, ...look.fleet.workers].filter((row) => !row.is_up).map((row) => row.name);
  return down.concat(Object.entries(look.fleet.others).filter(([, up]) => !up).map(([name]) => name));
}

function problem({ look, failure, lastGood }) {
  if (failure) {
    const since = lastGood ? clock(lastGood / 1000) : "";
    if (!mode.is_local) return ["stopped", since ? `Nothing was heard since ${since}` : "The release's pods are not known yet", "This page asks again by itself."];
    return ["stopped", since ? `The stack stopped at ${since}` : "No stack runs", "Start it with: make up. This page goes on by itself then."];
  }
  if (look.is_stopping) return ["warn", "The stack is stopping: open requests may finish."];
  const down = downNames(look);
  if (!look.is_ready) return ["warn", down.length ? `Starting; not there yet: ${down.join(", ")}.` : "Starting."];
  const parts = down.map((name) => {
    const since = look.lives[name]?.down_since_unix_s;
    if (!mode.is_local) return since ? `${name} has not answered since ${clock(since)}.` : `${name} does not answer.`;
    return `${name} is down${since ? ` since ${clock(since)}` : ""}; it starts again.`;
  });
  const violations = Object.entries(look.fleet.violations);
  if (violations.length) parts.push(`Violated invariants: ${violations.map(([check, n]) => `${check} ${n}`).join(", ")}.`);
  return parts.length ? ["bad", parts.join(" ")] : null;
}

function drawFrame(live) {
  const found = problem(live);
  const banner = at("banner");
  banner.hidden = !found;
  document.body.classList.toggle("is-stopped", found?.[0] === "stopped");
  if (found) {
    const [kind, text, more] = found;
    banner.className = kind;
    if (banner.dataset.text !== text) {
      banner.dataset.text = text;
      banner.replaceChildren(text, ...(more ? [node("small", {}, more)] : []));
    }
  }
  at("dot").className = `dot ${!found ? "good" : found[0] === "warn" ? "busy" : found[0] === "bad" ? "bad" : ""}`;
  say(at("stack"), live.look && !live.failure ? live.look.stack : "");
}

for (const link of document.querySelectorAll(".top nav a")) link.hidden = !mode.views.includes(link.dataset.view);
at("logout").hidden = mode.is_local;
at("logout").addEventListener("click", async () => {
  await ask("/api/logout", { method: "POST" });
  window.location.replace("/login");
});
window.addEventListener("hashchange", show);
listen(drawFrame);
// The names of pods do not say what they are.
if (!mode.is_local) await refresh();
show();
keepLooking();
