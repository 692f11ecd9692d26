// The button that sends users for a while, so that a fleet has something to do.

import { ask, node, say } from "/dom.js";
import { listen, refresh } from "/live.js";

const NUM_USERS = 20;

export function crowdBox(modelOf) {
  const button = node("button", { type: "button" }, `Send ${NUM_USERS} users`);
  const note = node("p", { class: "note dim", role: "status" }, "They ask one question after the other for 30 s.");
  let isRunning = false;
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      if (isRunning) await ask("/api/crowd", { method: "DELETE" });
      else await ask("/api/crowd", { method: "POST", body: { model: modelOf(), num_users: NUM_USERS } });
      await refresh();
    } catch (error) {
      say(note, error.message);
    }
    button.disabled = false;
  });
  const leave = listen(({ look }) => {
    if (!look?.crowd) return;
    const { crowd } = look;
    isRunning = crowd.is_running;
    say(button, isRunning ? "Send them home" : `Send ${NUM_USERS} users`);
    const answered = `${crowd.num_answered} answers${crowd.num_failed ? `, ${crowd.num_failed} failed` : ""}`;
    if (isRunning) say(note, `${Math.max(0, Math.ceil(crowd.ends_unix_s - look.at_unix_s))} s left · ${answered}`);
    else if (crowd.num_users) say(note, `They are gone: ${answered}.`);
  });
  return { element: node("div", { class: "crowd" }, button, note), leave };
}
