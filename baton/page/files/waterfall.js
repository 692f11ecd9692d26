// The spans of one request as a waterfall, children below their parents, with its first token.

import { keyed, node, say } from "/dom.js";
import { time } from "/format.js";

const EPOCH = "baton.epoch";
const COLOURS = [["gateway", "gateway"], ["quota", "quota"], ["tokenizer", "tokenizer"], ["router", "router"], ["prefill", "prefill worker"], ["decode", "decode worker"], ["move", "moving a stream"]];

export function colours() {
  return node("div", { class: "colours" }, ...COLOURS.map(([name, words]) =>
    node("span", {}, node("i", { style: { background: `var(--${name})` } }), words)));
}

export function inOrder(spans) {
  const known = new Set(spans.map((span) => span.span_id));
  const root = spans.find((span) => span.kind === "request") ?? spans.find((span) => !span.parent_id);
  const below = new Map();
  for (const span of [...spans].sort((a, b) => a.start_ns - b.start_ns || b.end_ns - a.end_ns)) {
    // A killed process has not exported its own spans: their children go below the request's span.
    const parent = span === root ? "" : known.has(span.parent_id) ? span.parent_id : root ? root.span_id : "";
    below.set(parent, [...(below.get(parent) ?? []), span]);
  }
  const walk = (parent, depth) => (below.get(parent) ?? []).flatMap((span) => [[span, depth], ...walk(span.span_id, depth + 1)]);
  return walk("", 0);
}

// The difference between two spans of one name: where each ran, in which attempt, and why.
function whereabouts(span) {
  const own = span.attributes;
  const parts = [own["baton.worker_id"] ?? span.colour.replace("_", " ")];
  if (own[EPOCH] > 1) parts.push(`attempt ${own[EPOCH]}`);
  if (own["baton.lost.worker_id"]) parts.push(`off ${own["baton.lost.worker_id"]}: ${own["baton.lost.reason"]}`);
  return parts.join(", ");
}

export class Waterfall {
  constructor() {
    this.rows = node("div");
    this.ruler = node("span", { class: "marks" });
    this.firstMark = node("span", { class: "track first-mark" });
    this.element = node("div", { class: "waterfall card" },
      node("div", { class: "span ruler" }, node("span"), this.ruler, node("span")),
      node("div", { class: "span" }, node("span"), this.firstMark, node("span")), this.rows);
  }

  // untilS: only so much of the time is shown; nowNs: it still runs.
  update(spans, { firstTokenS = null, untilS = null, nowNs = null, originNs = null }) {
    const start = originNs ?? Math.min(...spans.map((span) => span.start_ns));
    const end = Math.max(nowNs ?? 0, ...spans.map((span) => span.end_ns));
    const total = untilS ? untilS * 1e9 : end - start || 1;
    this.#drawRuler(total, firstTokenS);
    const first = firstTokenS === null ? null : Math.min(1, (firstTokenS * 1e9) / total);
    const shown = inOrder(spans).filter(([span]) => span.start_ns - start < total);
    keyed(this.rows, shown, ([span]) => span.span_id, ([span, depth]) => makeRow(span, depth), (row, [span, depth]) => syncRow(row, span, depth, { start, total, first }));
  }

  #drawRuler(total, firstTokenS) {
    const marks = [0, 0.25, 0.5, 0.75, 1];
    keyed(this.ruler, marks, (part) => `m${part}`, () => node("span"), (mark, part) => {
      mark.style.left = `${part * 100}%`;
      say(mark, part ? time((total * part) / 1e9) : "0");
    });
    const at = firstTokenS === null ? null : (firstTokenS * 1e9) / total;
    this.firstMark.parentElement.hidden = at === null || at > 1;
    if (at === null || at > 1) return;
    keyed(this.firstMark, [at], () => "first", () => node("span"), (mark) => {
      mark.style.left = `${at * 100}%`;
      mark.className = at > 0.7 ? "left" : "";
      say(mark, `first token after ${time(firstTokenS)}`);
    });
  }
}

function makeRow(span) {
  const name = node("span", { class: "name" });
  const track = node("span", { class: "track" }, node("span", { class: "bar" }), node("span", { class: "first-line" }));
  const summary = node("summary", { class: "span" }, name, track, node("span", { class: "time" }));
  return node("details", {}, summary, node("dl", { class: "attributes" }));
}

function syncRow(row, span, depth, { start, total, first }) {
  row.className = `of-${span.colour} ${span.kind === "move" ? "is-move" : ""} ${span.failed ? "is-failed" : ""}`;
  const [name, track, took] = row.firstElementChild.children;
  const where = whereabouts(span);
  if (name.dataset.text !== span.name + where) {
    name.dataset.text = span.name + where;
    name.title = `${span.name} ${where}`;
    name.replaceChildren(span.name, node("span", { class: "where" }, where));
  }
  name.style.paddingLeft = `${depth * 14}px`;
  const [bar, line] = track.children;
  const left = (span.start_ns - start) / total;
  bar.style.left = `${left * 100}%`;
  bar.style.width = `${Math.min((span.end_ns - span.start_ns) / total, 1 - left) * 100}%`;
  line.hidden = first === null;
  if (first !== null) line.style.left = `${first * 100}%`;
  say(took, time((span.end_ns - span.start_ns) / 1e9));
  const rows = Object.entries({ "begins after": time((span.start_ns - start) / 1e9), service: span.service, ...span.attributes });
  const list = row.lastElementChild;
  if (list.childElementCount !== rows.length * 2) {
    list.replaceChildren(...rows.flatMap(([key, value]) => [node("dt", {}, key), node("dd", {}, String(value))]));
  }
}
