// The pools as they work together: prefill workers at the left, decode workers at the right, and
// between them what waits and what each pair hands over.

import { keyed, node, say, svg } from "/dom.js";
import { bytes, count, life, rate, share, sum, time } from "/format.js";
import { workerUrl } from "/links.js";
import { shortName } from "/mode.js";

// More idle pairs than this are not drawn one by one.
const MOST_IDLE_PAIRS = 6;
const MOST_PAIRS = 12;

export function legend() {
  const entry = (kind, name, title) => node("span", { title }, node("i", { class: kind }), name);
  return node("span", { class: "legend" },
    entry("used", "KV used", "Blocks that running sequences hold"),
    entry("promised", "promised", "Blocks that are set aside for prompts on their way"),
    entry("cached", "cached", "Blocks of earlier prompts that can be used again, or given away"));
}

export class WorkerCard {
  constructor(name, role, isLink = true) {
    this.life = node("span", { class: "life" });
    this.pieces = ["used", "promised", "cached"].map((kind) => node("span", { class: kind }));
    this.bar = node("div", { class: "kv-bar", role: "img" }, ...this.pieces);
    this.kvText = node("div", { class: "kv-text" });
    this.numbers = new Map();
    const figures = [["running", "Sequences in its batch"], ["waiting", "Sequences that wait in it"],
      ["batch", "Sequences in a step, on average"], ["step", "Time of a step, on average"],
      ["tokens/s", role === "prefill" ? "Prompt tokens computed" : "Output tokens"], ["hits", "Prompt tokens that were found in its cache"]];
    const list = node("dl", { class: "figures-of" }, ...figures.map(([label, title]) => {
      const value = node("dd");
      this.numbers.set(label, value);
      return node("div", { title }, node("dt", {}, label), value);
    }));
    this.model = node("span", { class: "note dim" });
    this.element = node(isLink ? "a" : "div", { class: `worker card ${role}`, href: isLink ? workerUrl(name) : undefined },
      node("div", { class: "title" }, node("b", {}, name), this.model, this.life),
      node("div", { class: "kv" }, this.bar, this.kvText), list);
    this.role = role;
  }

  update(look, row, showModel) {
    this.element.classList.toggle("down", !row.is_up);
    say(this.life, row.is_up ? `up ${life(look, row.name, true)}` : life(look, row.name, false));
    say(this.model, showModel ? row.model : "");
    const own = look.pictures[row.name];
    const pool = own?.num_blocks || 1;
    // A cached block may be in use; the bar shows those that are idle.
    const idle = Math.max(0, (own?.num_cached ?? 0) - (own?.num_used ?? 0));
    [own?.num_used ?? 0, own?.num_promised ?? 0, idle].forEach((number, index) => {
      this.pieces[index].style.width = `${Math.min(1, number / pool) * 100}%`;
    });
    const text = own
      ? `${count(own.num_used)} of ${count(own.num_blocks)} blocks used, ${count(own.num_promised)} promised, ${count(own.num_cached)} cached`
      : "does not answer";
    say(this.kvText, text);
    this.bar.setAttribute("aria-label", text);
    const set = (name, value) => say(this.numbers.get(name), row.is_up ? value : "–");
    set("running", row.num_parked ? `${row.num_running} + ${row.num_parked}` : row.num_running);
    set("waiting", row.num_waiting);
    set("batch", own?.batch ? own.batch.toFixed(1) : "–");
    set("step", own?.step_ms ? `${own.step_ms.toFixed(own.step_ms < 10 ? 1 : 0)} ms` : "–");
    set("tokens/s", rate(this.role === "prefill" ? row.prompt_tokens_per_s : row.output_tokens_per_s));
    set("hits", row.hit_share === null ? "–" : share(row.hit_share));
  }
}

export class FleetPicture {
  constructor() {
    this.cards = new Map();
    this.pools = { prefill: this.#pool("prefill", "Prefill pool"), decode: this.#pool("decode", "Decode pool") };
    this.queueNumber = node("div", { class: "big" });
    this.queueText = node("div", { class: "note dim" });
    this.queue = node("div", { class: "queue card", title: "Requests that wait in the routers for a pair of workers" }, this.queueNumber, this.queueText);
    this.pairs = node("div", { class: "between" });
    this.between = node("div", { class: "between" }, this.queue, this.pairs);
    this.wires = svg("svg", { class: "wires", "aria-hidden": "true" });
    this.element = node("div", { class: "picture card" }, this.wires, this.pools.prefill.element, this.between, this.pools.decode.element);
    this.legend = legend();
    this.resize = new ResizeObserver(() => this.#drawWires());
    this.resize.observe(this.element);
  }

  leave() {
    this.resize.disconnect();
  }

  #pool(role, title) {
    const note = node("span", { class: "note dim" });
    const element = node("div", { class: "pool" },
      node("div", { class: "pool-head" }, node("span", { class: `swatch ${role}` }), node("h3", {}, title), note));
    return { element, note };
  }

  update(look) {
    const models = new Set(look.fleet.workers.map((row) => row.model).filter(Boolean));
    const ofRole = (role) => look.fleet.workers.filter((row) => row.role === role);
    for (const [role, pool] of Object.entries(this.pools)) this.#drawPool(look, role, pool, ofRole(role), models.size > 1);
    const isSplit = ofRole("prefill").length > 0;
    this.element.classList.toggle("one-pool", !isSplit);
    this.pools.prefill.element.hidden = this.pairs.hidden = !isSplit;
    const queued = look.fleet.num_queued;
    say(this.queueNumber, queued ? `${count(queued)} in queue` : "Queue empty");
    const waits = look.fleet.queued_prefill_s.prefill ?? look.fleet.queued_prefill_s.decode ?? 0;
    say(this.queueText, waits > 0.0005 ? `${time(waits)} of prefill waits` : "requests are placed at once");
    this.#drawPairs(look, ofRole("prefill"), ofRole("decode"));
    this.#drawWires();
  }

  #drawPool(look, role, pool, rows, showModel) {
    const up = rows.filter((row) => row.is_up).length;
    const tokens = role === "prefill" ? `${rate(sum(rows, "prompt_tokens_per_s"))} prompt tokens/s` : `${rate(sum(rows, "output_tokens_per_s"))} output tokens/s`;
    say(pool.note, `${up} of ${rows.length} up · ${tokens}`);
    keyed(pool.element, rows, (row) => row.name, (row) => {
      const card = new WorkerCard(row.name, role);
      this.cards.set(row.name, card);
      return card.element;
    }, (_, row) => this.cards.get(row.name).update(look, row, showModel));
  }

  #drawPairs(look, prefills, decodes) {
    const active = new Map(look.pairs.map((pair) => [`${pair.prefill} ${pair.decode}`, pair]));
    const possible = prefills.flatMap((from) => decodes.filter((to) => !from.model || !to.model || from.model === to.model)
      .map((to) => active.get(`${from.name} ${to.name}`) ?? { prefill: from.name, decode: to.name, num_handoffs: 0 }));
    const drawn = (possible.length <= MOST_IDLE_PAIRS ? possible : possible.filter((pair) => pair.num_handoffs)).slice(0, MOST_PAIRS);
    this.drawn = drawn;
    keyed(this.pairs, drawn, (pair) => `${pair.prefill} ${pair.decode}`,
      () => node("div", { class: "pair card" }, node("div", { class: "names" }), node("div", { class: "told" })),
      (child, pair) => {
        child.classList.toggle("idle", !pair.num_handoffs);
        say(child.children[0], `${shortName(pair.prefill)} → ${shortName(pair.decode)}`);
        say(child.children[1], pair.num_handoffs ? pairText(pair) : "nothing handed over");
        child.title = pair.num_handoffs
          ? `${pair.num_handoffs} handoffs, ${bytes(pair.num_bytes)}. The time is what a handoff adds after the prompt was computed (median); it moves layer by layer meanwhile.`
          : "";
      });
  }

  #drawWires() {
    const frame = this.element.getBoundingClientRect();
    const place = (element, side) => {
      const box = element.getBoundingClientRect();
      return [(side === "right" ? box.right : box.left) - frame.left, (box.top + box.bottom) / 2 - frame.top];
    };
    const paths = [];
    for (const pair of this.drawn ?? []) {
      const chip = [...this.pairs.children].find((child) => child.dataset.key === `${pair.prefill} ${pair.decode}`);
      const from = this.cards.get(pair.prefill)?.element, to = this.cards.get(pair.decode)?.element;
      if (!chip || !from || !to) continue;
      for (const [start, end] of [[place(from, "right"), place(chip, "left")], [place(chip, "right"), place(to, "left")]]) {
        const middle = (start[0] + end[0]) / 2;
        paths.push({ key: `${pair.prefill} ${pair.decode} ${paths.length}`, active: pair.num_handoffs > 0,
          d: `M${start[0]},${start[1]}C${middle},${start[1]} ${middle},${end[1]} ${end[0]},${end[1]}` });
      }
    }
    if (!this.gradient) {
      this.gradient = svg("defs", {}, svg("linearGradient", { id: "handed", gradientUnits: "userSpaceOnUse", x1: "30%", x2: "70%", y1: 0, y2: 0 },
        svg("stop", { offset: "0", style: { stopColor: "var(--prefill)" } }), svg("stop", { offset: "1", style: { stopColor: "var(--decode)" } })));
      this.wires.append(this.gradient);
    }
    keyed(this.wires, paths, (path) => path.key, () => svg("path"), (child, path) => {
      child.setAttribute("d", path.d);
      child.setAttribute("class", path.active ? "active" : "");
    });
  }
}

function pairText(pair) {
  const parts = [`${bytes(pair.bytes_per_s)}/s`];
  if (pair.added_s !== null) parts.push(`+${time(pair.added_s)}`);
  if (pair.transport) parts.push(pair.transport);
  return parts.join(" · ");
}
