// A list whose rows stay where they are while somebody is about to use them.
//
// Rows are kept by key and updated in place. Their order and number hold still while the list is
// pointed at, focused or selected in, and for some seconds after any use of the page: between
// looking at a row and clicking it nothing may move. What is new meanwhile is a number on a chip,
// which lets it in. Rows that are over stay, greyed.

import { keyed, node, say } from "/dom.js";

const QUIET_MS = 8000;
let lastUse = -Infinity;
for (const kind of ["pointermove", "pointerdown", "keydown", "wheel", "touchstart", "scroll"]) {
  window.addEventListener(kind, () => (lastUse = performance.now()), { passive: true, capture: true });
}

// columns: {name, text(row), title?, number?, width?, wide?: 1 from 760 px on, 2 from 1000 px on,
//           class?, make?(row): an element made once, sync?(element, row)}
export class KeyedTable {
  constructor(columns, key, { empty, label, most = 200 }) {
    this.columns = columns;
    this.key = key;
    this.most = most;
    this.latest = [];
    this.shown = null;
    this.chip = node("button", { class: "chip", type: "button", hidden: true, onclick: () => this.letIn() });
    this.body = node("tbody");
    // No row: a cell over all columns would make room for those that are not shown.
    this.nothing = node("p", { class: "empty", hidden: true }, empty);
    const heads = columns.map((column) =>
      node("th", { class: this.#classOf(column), scope: "col", title: column.title, style: column.width ? { width: column.width } : {} }, column.name));
    this.element = node("div", { class: "list card" }, this.chip,
      node("table", { "aria-label": label }, node("thead", {}, node("tr", {}, ...heads)), this.body), this.nothing);
  }

  #classOf(column) {
    return [column.number && "number", ["", "wide-only", "widest-only"][column.wide ?? 0], column.class].filter(Boolean).join(" ");
  }

  get isHeld() {
    const selection = document.getSelection();
    return (
      this.body.matches(":hover") ||
      this.body.contains(document.activeElement) ||
      (!selection.isCollapsed && this.body.contains(selection.anchorNode)) ||
      performance.now() - lastUse < QUIET_MS
    );
  }

  // Another list altogether: other filters.
  reset() {
    this.shown = null;
  }

  update(rows) {
    this.latest = rows.slice(0, this.most);
    if (this.shown === null || !this.shown.length || !this.isHeld) this.letIn();
    else this.#hold();
  }

  letIn() {
    this.shown = this.latest;
    this.#draw(new Set());
    this.chip.hidden = true;
  }

  #hold() {
    const now = new Map(this.latest.map((row) => [this.key(row), row]));
    const gone = new Set();
    this.shown = this.shown.map((row) => {
      const key = this.key(row);
      if (!now.has(key)) gone.add(key);
      const latest = now.get(key) ?? row;
      now.delete(key);
      return latest;
    });
    this.#draw(gone);
    this.chip.hidden = now.size === 0;
    say(this.chip, `${now.size} new`);
  }

  #draw(gone) {
    keyed(this.body, this.shown, this.key, (row) => this.#make(row), (element, row) => this.#sync(element, row, gone));
    this.nothing.hidden = this.shown.length > 0;
  }

  #make(row) {
    const cells = this.columns.map((column) => {
      const made = column.make ? column.make(row) : null;
      return node("td", { class: this.#classOf(column) }, made);
    });
    return node("tr", {}, ...cells);
  }

  #sync(element, row, gone) {
    element.classList.toggle("gone", gone.has(this.key(row)));
    this.columns.forEach((column, index) => {
      const cell = element.children[index];
      if (column.sync) column.sync(column.make ? cell.firstElementChild : cell, row);
      else if (!column.make) say(cell, column.text(row));
    });
  }
}
