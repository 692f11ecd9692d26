// A chat answer as it comes: an event for each delta, with the moment at which it came.

import { messageOf } from "/dom.js";

export const nowS = () => (performance.timeOrigin + performance.now()) / 1000;

// on: {head(headers), delta(delta, atS), usage(usage), finish(reason)}. Throws an Error with the server's words.
export async function streamed(body, signal, on) {
  const answer = await fetch("/api/chat", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
  on.head(answer.headers);
  if (!answer.ok) throw new Error(messageOf(await answer.text()));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) take(event, on);
  }
}

function take(event, on) {
  const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
  if (!data || data === "[DONE]") return;
  const chunk = JSON.parse(data);
  if (chunk.error) throw new Error(chunk.error.message);
  if (chunk.usage) on.usage(chunk.usage);
  for (const choice of chunk.choices ?? []) {
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (content || reasoning || calls) on.delta(choice.delta, nowS());
    if (choice.finish_reason) on.finish(choice.finish_reason);
  }
}

// "auth;dur=0.1, prefill;dur=40": [[name, seconds]]
export function stagesOf(headers) {
  return (headers.get("server-timing") ?? "").split(", ").filter(Boolean).map((part) => {
    const [name, duration] = part.split(";dur=");
    return [name, Number(duration) / 1000];
  });
}
