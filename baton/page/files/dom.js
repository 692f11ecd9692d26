// Elements, and what they share. Everything from outside becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (name === "class") made.setAttribute("class", value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const node = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

// Changes an element only where it differs, so that a selection in it survives.
export function say(element, text) {
  const wanted = String(text ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

// Children by key: kept, moved, made or removed, so that focus and hover stay where they are.
export function keyed(parent, rows, keyOf, make, sync) {
  const known = new Map([...parent.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  const wanted = new Set(rows.map((row) => String(keyOf(row))));
  // First what goes: a child that is moved loses the focus, and these would make others move.
  for (const [key, child] of known) {
    if (!wanted.has(key)) child.remove();
  }
  let before = [...parent.children].find((child) => child.dataset.key) ?? null;
  for (const row of rows) {
    const key = String(keyOf(row));
    let child = known.get(key);
    if (!child) {
      child = make(row);
      child.dataset.key = key;
    }
    if (child === before) before = before.nextElementSibling;
    else parent.insertBefore(child, before);
    sync(child, row);
  }
}

export function copyButton(text, label = "Copy") {
  const button = node("button", { class: "copy", type: "button", title: label, "aria-label": label },
    svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" },
      svg("rect", { x: 5, y: 5, width: 8.5, height: 8.5, rx: 1.6 }),
      svg("path", { d: "M11 5V3.6A1.6 1.6 0 0 0 9.4 2H3.6A1.6 1.6 0 0 0 2 3.6v5.8A1.6 1.6 0 0 0 3.6 11H5" })));
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    event.preventDefault();
    await copy(typeof text === "function" ? text() : text);
    button.classList.add("done");
    button.title = "Copied";
    setTimeout(() => {
      button.classList.remove("done");
      button.title = label;
    }, 1200);
  });
  return button;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without the permission there is still the old way.
    const area = node("textarea", { class: "skip", value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

// Asks this page's own server. Throws an Error with the server's words.
export async function ask(path, { method = "GET", body } = {}) {
  const options = { method, headers: {} };
  if (method !== "GET") {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body ?? {});
  }
  const answer = await fetch(path, options);
  const text = await answer.text();
  // The session has ended, of a page that has any.
  if (answer.status === 401) window.location.replace(`/login${window.location.hash}`);
  if (!answer.ok) throw new Error(messageOf(text) || `${answer.status} ${answer.statusText}`);
  return JSON.parse(text);
}

export function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.slice(0, 300);
  }
}
