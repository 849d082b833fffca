// Numbers, times and ids as people read them. Pure.

export const STATES = ["queued", "prefilling", "held", "reading", "decoding"];

const isNothing = (value) => value === null || value === undefined;

export function duration(ms) {
  if (isNothing(ms)) return "–";
  if (ms === 0) return "0 ms";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 99950) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.round(ms / 60000);
  return minutes < 120 ? `${minutes} min` : `${Math.round(minutes / 60)} h`;
}

export function count(value) {
  return isNothing(value) ? "–" : Math.round(value).toLocaleString("en");
}

export function rate(value) {
  if (isNothing(value)) return "–";
  return value === 0 ? "0" : value < 10 ? value.toFixed(1) : count(value);
}

export const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// The time of day in this browser's zone; the logs of a machine may be in another one.
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en", { hourCycle: "h23" });

// Generated ids are random from their first digit on: eight digits tell an id from all others on the page. An id that a
// person chose is shown whole, a URL without its scheme.
export const short = (id) => (/^[0-9a-f]{12,}$/.test(id) ? id.slice(0, 8) : id.replace(/^https?:\/\//, ""));
