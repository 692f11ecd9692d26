// The life of one answer as lanes: the gateway, the prefill worker, and each decode worker with its
// tokens as ticks; the first token, and where a stream was moved from one worker to another.
//
// While it runs, it is drawn from the answer's headers, the ticks and the picks; once its spans are
// there, from them.

import { keyed, node, say } from "/dom.js";
import { time } from "/format.js";

const BEFORE = [["auth", "quota"], ["validate", "gateway"], ["reserve", "quota"], ["tokenize", "tokenizer"], ["pick", "router"], ["queue", "router"]];
const KIND_COLOURS = { auth: "quota", validate: "gateway", reserve: "quota", tokenize: "tokenizer", pick: "router", queue: "router", safety: "gateway" };

export class Lanes {
  constructor() {
    this.rows = node("div", { class: "life" });
    this.axisEnd = node("span", { class: "end" });
    this.axisFirst = node("span", { class: "ttft" });
    this.axis = node("div", { class: "lane axis" }, node("span", { class: "who" }), node("div", { class: "track" }, this.axisFirst, this.axisEnd));
    this.element = node("div", { class: "life", role: "img", "aria-label": "Where the time of this answer went" }, this.rows, this.axis);
  }

  // life: {startS, nowS, stages, ticks, picks, spans, isOver, losses}
  update(life) {
    const start = life.spans?.find((span) => span.kind === "request")?.start_ns / 1e9 || life.startS;
    const total = Math.max(life.nowS - start, 0.4);
    const first = life.ticks.length ? life.ticks[0] - start : null;
    const lanes = lanesOf(life, start);
    const place = (seconds) => `${Math.max(0, Math.min(1, (seconds - start) / total)) * 100}%`;
    keyed(this.rows, lanes, (lane) => lane.key, makeLane, (row, lane) => {
      const [who, track] = row.children;
      say(who, lane.name);
      who.title = lane.name;
      who.classList.toggle("lost", Boolean(lane.lostS));
      const marks = [...lane.pieces.map((piece, index) => ({ ...piece, key: `${piece.className} ${index}` }))];
      if (first !== null) marks.push({ key: "first", className: "first", from: start + first });
      if (lane.lostS) marks.push({ key: "death", className: "death", from: lane.lostS, title: `${lane.name} was lost` });
      keyed(track, marks, (mark) => mark.key, () => node("span"), (child, mark) => {
        child.className = mark.className.includes(" ") || ["first", "death"].includes(mark.className) ? mark.className : `piece ${mark.className}`;
        child.style.left = place(mark.from);
        if (mark.to !== undefined) child.style.width = `${Math.max(0, (mark.to - mark.from) / total) * 100}%`;
        child.title = mark.title ?? "";
      });
      drawTicks(track.querySelector("canvas"), lane.ticks ?? [], start, total);
    });
    say(this.axisEnd, time(total));
    this.axisFirst.hidden = first === null;
    if (first === null) return;
    const part = first / total;
    this.axisFirst.classList.toggle("near", part < 0.12);
    this.axisFirst.classList.toggle("far", part > 0.8);
    this.axisFirst.style.left = `${part * 100}%`;
    say(this.axisFirst, `first token ${time(first)}`);
    // Both labels need their room.
    this.axisEnd.hidden = part > 0.72;
  }
}

function makeLane() {
  return node("div", { class: "lane" }, node("span", { class: "who" }), node("div", { class: "track" }, node("canvas", { "aria-hidden": "true" })));
}

function lanesOf(life, start) {
  const picks = life.picks;
  const spans = life.spans ?? [];
  const lanes = [{ key: "gateway", name: "gateway", pieces: spans.length ? gatewayPieces(spans) : stagePieces(life.stages, start) }];
  const decodes = picks.length ? picks : [{ decode: "decode", prefill: "" }];
  const borders = bordersOf(life, decodes.length);
  decodes.forEach((pick, index) => {
    const from = index ? borders[index - 1].from : start;
    const until = index < borders.length ? borders[index].from : Infinity;
    if (pick.prefill) {
      const key = `prefill ${index}`;
      const pieces = spans.length ? prefillPieces(spans, borders[index - 1]?.from ?? 0, until) : index ? [] : estimatedPrefill(life);
      if (pieces.length || !index) lanes.push({ key, name: pick.prefill, pieces });
    }
    const resumed = index ? borders[index - 1].to : 0;
    const ticks = life.ticks.filter((tick) => (index ? tick >= resumed - 1e-3 : true) && tick <= until);
    const moved = index ? [{ className: "move", from, to: Math.max(Math.min(resumed, life.nowS), from), title: "the stream moves to this worker" }] : [];
    lanes.push({ key: `decode ${index}`, name: pick.decode, pieces: moved, ticks, lostS: index < borders.length ? borders[index].from : 0 });
  });
  return lanes;
}

// Where each attempt was lost and where the stream went on: from spans, else from the silence between ticks.
function bordersOf(life, numAttempts) {
  const moves = (life.spans ?? []).filter((span) => span.kind === "move").map((span) => ({ from: span.start_ns / 1e9, to: span.end_ns / 1e9 }));
  const losses = life.losses.map((loss) => ({ from: loss, to: life.ticks.find((tick) => tick > loss + 1e-3) ?? Infinity }));
  const found = moves.length >= losses.length ? moves : losses;
  return found.slice(0, numAttempts - 1);
}

function stagePieces(stages, start) {
  const pieces = [];
  let at = start;
  for (const [name, colour] of BEFORE) {
    const seconds = stages.find(([stage]) => stage === name)?.[1] ?? 0;
    if (seconds) pieces.push({ className: colour, from: at, to: at + seconds, title: `${name} ${time(seconds)}` });
    at += seconds;
  }
  return pieces;
}

function gatewayPieces(spans) {
  return spans.filter((span) => span.colour === "gateway" && span.kind in KIND_COLOURS)
    .map((span) => ({ className: KIND_COLOURS[span.kind], from: span.start_ns / 1e9, to: span.end_ns / 1e9, title: `${span.name} ${time((span.end_ns - span.start_ns) / 1e9)}` }));
}

// Counted back from the first token: the handoff ends there, and the worker's own stages stand before it.
function estimatedPrefill(life) {
  if (!life.ticks.length) return [];
  const seconds = (name) => life.stages.find(([stage]) => stage === name)?.[1] ?? 0;
  const pieces = [];
  let end = life.ticks[0];
  for (const [name, className] of [["handoff", "handoff"], ["prefill.compute", "prefill"], ["prefill.queue", "wait"]]) {
    if (seconds(name)) pieces.unshift({ className, from: end - seconds(name), to: end, title: `${name} ${time(seconds(name))}` });
    end -= seconds(name);
  }
  return pieces;
}

function prefillPieces(spans, fromS, untilS) {
  const own = spans.filter((span) => span.start_ns / 1e9 >= fromS - 0.05 && span.start_ns / 1e9 < untilS);
  const piece = (span, className, from = span.start_ns) => ({ className, from: from / 1e9, to: span.end_ns / 1e9, title: `${span.name} ${time((span.end_ns - span.start_ns) / 1e9)}` });
  const pieces = [];
  for (const span of own) {
    if (span.kind === "prefill.queue") pieces.push(piece(span, "wait"));
    if (span.kind === "prefill.compute") pieces.push(piece(span, "prefill"));
  }
  for (const span of own.filter((each) => each.kind === "handoff")) {
    const computed = Math.max(0, ...own.filter((each) => each.parent_id === span.span_id && each.kind === "prefill.compute").map((each) => each.end_ns));
    if (computed && computed < span.end_ns) pieces.push(piece(span, "handoff", computed));
  }
  return pieces;
}

function drawTicks(canvas, ticks, start, total) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const paint = canvas.getContext("2d");
  paint.clearRect(0, 0, width, height);
  if (!ticks.length) return;
  paint.fillStyle = colourOf(canvas);
  for (const tick of ticks) {
    paint.fillRect(Math.round(((tick - start) / total) * width), Math.round(height * 0.18), Math.max(1, ratio * 0.9), Math.round(height * 0.64));
  }
}

// A canvas knows no light-dark(): the computed colour of an element does.
function colourOf(canvas) {
  if (!colourOf.probe?.isConnected) {
    colourOf.probe = node("span", { hidden: true, style: { color: "var(--decode)" } });
    document.body.append(colourOf.probe);
  }
  return getComputedStyle(colourOf.probe).color;
}
