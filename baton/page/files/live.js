// Looks at the fleet once a second and tells whoever listens. Nobody listens for long after leaving.

import { ask } from "/dom.js";

const EVERY_MS = 1000;
const HIDDEN_EVERY_MS = 5000;
const listeners = new Set();
export const live = { look: null, lastGood: null, failure: "", windowS: stored() };

function stored() {
  const found = Number(window.sessionStorage.getItem("window"));
  return [10, 60, 300].includes(found) ? found : 10;
}

export function chooseWindow(seconds) {
  live.windowS = seconds;
  window.sessionStorage.setItem("window", seconds);
  refresh();
}

export function listen(listener) {
  listeners.add(listener);
  if (live.look || live.failure) listener(live);
  return () => listeners.delete(listener);
}

export async function refresh() {
  const asked = live.windowS;
  try {
    const look = await ask(`/api/fleet?window=${asked}`);
    // Meanwhile another window was chosen, whose answer is on its way.
    if (asked !== live.windowS) return;
    live.failure = look.stack ? "" : "no stack runs";
    if (look.stack) {
      live.look = look;
      live.lastGood = new Date();
    }
  } catch (error) {
    live.failure = error.message;
  }
  for (const listener of listeners) listener(live);
}

export async function keepLooking() {
  for (;;) {
    await refresh();
    const wait = document.hidden ? HIDDEN_EVERY_MS : EVERY_MS;
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
