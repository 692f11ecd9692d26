// A small chart of one figure over the chosen window; the pointer reads a moment of it.

import { svg } from "/dom.js";

const WIDTH = 200;
const HEIGHT = 38;

export class Chart {
  constructor(onPoint) {
    this.points = [];
    this.onPoint = onPoint;
    this.area = svg("path", { class: "area" });
    this.stroke = svg("path", { class: "stroke" });
    this.cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.element = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.area, this.stroke, this.cursor);
    this.element.addEventListener("pointermove", (event) => this.#read(event));
    this.element.addEventListener("pointerleave", () => this.#leave());
  }

  // points: [{at, value}], at in seconds; null values are left out.
  update(points, from, to) {
    this.points = points.filter((point) => point.value !== null && point.value !== undefined);
    const most = Math.max(...this.points.map((point) => point.value), 1e-9);
    const x = (at) => Math.max(0, ((at - from) / (to - from)) * WIDTH);
    const y = (value) => HEIGHT - 2 - (value / most) * (HEIGHT - 6);
    const drawn = this.points.map((point) => ({ ...point, x: x(point.at), y: y(point.value) }));
    this.drawn = drawn;
    if (drawn.length < 2) {
      this.stroke.setAttribute("d", "");
      this.area.setAttribute("d", "");
      return;
    }
    const line = drawn.map((point) => `${point.x.toFixed(1)},${point.y.toFixed(1)}`).join("L");
    this.stroke.setAttribute("d", `M${line}`);
    this.area.setAttribute("d", `M${drawn[0].x.toFixed(1)},${HEIGHT}L${line}L${drawn.at(-1).x.toFixed(1)},${HEIGHT}Z`);
  }

  #read(event) {
    if (!this.drawn?.length) return;
    const box = this.element.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const nearest = this.drawn.reduce((best, point) => (Math.abs(point.x - x) < Math.abs(best.x - x) ? point : best));
    this.cursor.setAttribute("x1", nearest.x);
    this.cursor.setAttribute("x2", nearest.x);
    this.cursor.setAttribute("visibility", "visible");
    this.onPoint(nearest);
  }

  #leave() {
    this.cursor.setAttribute("visibility", "hidden");
    this.onPoint(null);
  }
}
