// Links to the views, and cells that several lists have.

import { copyButton, node, say } from "/dom.js";
import { shortName } from "/mode.js";

export const requestUrl = (id) => `#/requests/${encodeURIComponent(id)}`;
export const workerUrl = (name) => `#/workers/${encodeURIComponent(name)}`;

export const requestColumn = (width) => ({
  name: "request",
  width,
  make: (row) =>
    node("span", { class: "id-cell" },
      node("a", { class: "id", href: requestUrl(row.request_id), title: row.request_id }, row.request_id),
      copyButton(row.request_id, "Copy the request id")),
  sync: () => {},
});

// Cells with the names of workers: short ones, and whole when they are pointed at.
export const workersColumn = (column) => ({
  ...column,
  sync: (cell, row) => {
    say(cell, workersText(row, shortName));
    cell.title = workersText(row);
  },
});

export const outcomeColumn = {
  name: "ended",
  title: "stop: the model ended its answer; length: a limit did; else the reason of the failure",
  width: "6.5rem",
  sync: (cell, row) => {
    say(cell, row.outcome);
    cell.classList.toggle("bad", row.failed);
  },
};

export function workersText(row, named = (name) => name) {
  const decode = row.workers.map(named).join(" → ");
  const prefill = (row.prefill ?? []).filter((name) => !row.workers.includes(name)).map(named).join(", ");
  return prefill && decode ? `${prefill} ⇢ ${decode}` : decode || prefill;
}
