// Numbers as people read them.

export const count = (value) => Math.round(value).toLocaleString("en");
export const cost = (value) => (value === null || value === undefined ? "" : value >= 1 ? value.toFixed(2) : value.toLocaleString("en", { maximumSignificantDigits: 2 }));
export const share = (value) => (value > 0 && value < 0.01 ? "<1 %" : `${Math.round(value * 100)} %`);

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.05) return "0";
  return value >= 100 ? count(value) : value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

export function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return span(seconds);
}

// A length of time in which a second does not matter.
export function span(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function bytes(value) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return `${(value / size).toFixed(value / size < 10 ? 1 : 0)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

export const clock = (unixSeconds) => new Date(unixSeconds * 1000).toLocaleTimeString("en-GB");
export const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);

const STAGES = { pick: "in queue", move: "moving", flush: "sending" };
export const stage = (name) => STAGES[name] ?? name;

// How long a process is there, and how often it was started again.
export function life(look, name, isUp) {
  const own = look.lives[name];
  if (!own) return "";
  if (!isUp) return own.down_since_unix_s ? `down for ${span(look.at_unix_s - own.down_since_unix_s)}` : "down";
  const again = own.num_restarts ? `, ${own.num_restarts} restart${own.num_restarts > 1 ? "s" : ""}` : "";
  return own.started_unix_s ? `${span(look.at_unix_s - own.started_unix_s)}${again}` : "";
}
