// One process of the fleet: a worker's pool and requests, and on this machine the end of its log.

import { ask, copyButton, node, say } from "/dom.js";
import { life } from "/format.js";
import { openTable, windowSwitch } from "/fleet.js";
import { listen, live } from "/live.js";
import { mode } from "/mode.js";
import { legend, WorkerCard } from "/picture.js";
import { recentTable } from "/requests.js";

const EVERY_MS = 2000;

function logLine(text) {
  try {
    const { time, level, service: _service, logger, event, ...rest } = JSON.parse(text);
    const more = Object.entries(rest).map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ");
    return node("div", { class: level === "error" ? "error" : level === "warning" ? "warning" : "" },
      node("time", {}, String(time).slice(11, 23)), ` ${logger} ${event} ${more}`);
  } catch {
    return node("div", {}, text);
  }
}

export function workerView(name) {
  // In a cluster the first look is there before any view.
  const role = ["prefill", "decode"].find((each) => each === live.look?.lives[name]?.role || (mode.is_local && name.startsWith(`${each}-`)));
  const card = role ? new WorkerCard(name, role, false) : null;
  const since = node("span", { class: "tag" });
  const open = openTable("None of its requests is open.", 30);
  const recent = recentTable("None of its requests is kept.", 50);
  const log = node("pre", { class: "code log", tabindex: "0", role: "region", "aria-label": `Log of ${name}` });
  const switcher = windowSwitch();
  let isLeft = false, timer = 0, lastLine = "";

  const stop = listen(({ look }) => {
    switcher.sync();
    if (!look) return;
    const row = look.fleet.workers.find((each) => each.name === name);
    const isUp = row ? row.is_up : look.lives[name]?.is_running;
    say(since, look.lives[name] ? `${isUp ? "up" : ""} ${life(look, name, isUp)}` : mode.is_local ? "not a process of this stack" : "no pod of this release now");
    since.className = `tag ${isUp ? "good" : "bad"}`;
    if (card && row) card.update(look, row, true);
    if (card) open.update(look.requests.filter((request) => request.workers.includes(name)));
  });

  async function look() {
    try {
      const [{ lines }, found] = await Promise.all([
        mode.is_local ? ask(`/api/logs/${encodeURIComponent(name)}`) : { lines: [] },
        card ? ask(`/api/requests?since=3600&worker=${encodeURIComponent(name)}`) : { rows: [] },
      ]);
      if (isLeft) return;
      recent.update(found.rows);
      // A text in which somebody selects or reads back stays as it is.
      const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
      const selection = document.getSelection();
      const isRead = !selection.isCollapsed && log.contains(selection.anchorNode);
      const newest = lines.at(-1) ?? "";
      if ((newest !== lastLine && isAtEnd && !isRead) || !log.childElementCount) {
        lastLine = newest;
        log.replaceChildren(...lines.map(logLine));
        log.scrollTop = log.scrollHeight;
      }
    } catch (error) {
      if (!log.childElementCount) say(log, error.message);
    }
    if (!isLeft) timer = setTimeout(look, EVERY_MS);
  }

  look();
  const command = `kubectl logs ${name}`;
  const logSection = !mode.is_local ? node("section", {}, node("p", { class: "note" }, "Its log: ", node("code", { class: "mono" }, command), copyButton(command, "Copy the command"))) : node("section", { "aria-labelledby": "log-heading" },
    node("div", { class: "section-head" }, node("h2", { id: "log-heading" }, "Log"), node("span", { class: "note dim" }, `the last lines of .baton/logs/${name}.log`)), log);
  const head = node("section", {}, node("p", { class: "note" }, node("a", { href: "#/" }, "← Fleet")),
    node("div", { class: "section-head" }, node("h1", {}, name), since, node("span", { class: "grow" }), card ? switcher : null));
  const element = card
    ? [head, node("div", { class: "worker-view" }, node("div", {}, card.element, legend()), logSection),
      node("section", { "aria-labelledby": "own-open" }, node("div", { class: "section-head" }, node("h2", { id: "own-open" }, "Open requests")), open.element),
      node("section", { "aria-labelledby": "own-recent" }, node("div", { class: "section-head" }, node("h2", { id: "own-recent" }, "Its last requests")), recent.element)]
    : [head, logSection];
  return { element, title: name, leave: () => { isLeft = true; clearTimeout(timer); stop(); } };
}
