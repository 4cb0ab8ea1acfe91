// Numbers, times and words for people. Pure.

const UNKNOWN = "–";

export function formatCount(value) {
  return value === null || value === undefined ? UNKNOWN : Math.round(value).toLocaleString("en-US");
}

export function formatRate(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return `${value < 10 && value > 0 ? value.toFixed(1) : formatCount(value)}/s`;
}

export function formatUs(value) {
  if (value === "never") return "never";
  if (value === null || value === undefined) return UNKNOWN;
  const size = Math.abs(value);
  if (size < 1e3) return `${Math.round(value)} µs`;
  if (size < 1e6) return `${(value / 1e3).toFixed(size < 1e4 ? 2 : 1)} ms`;
  return `${(value / 1e6).toFixed(2)} s`;
}

// A share as people write it: "99.99 %". It is cut, not rounded: what is not everything never
// reads "100 %", and what is not nothing never reads "0 %".
export function formatShare(value) {
  if (value === null || value === undefined) return "unknowable";
  if (value <= 0 || value >= 1) return `${Math.round(value * 100)} %`;
  // The first digit that shows the difference from 0 and from 1, and one more.
  const digits = Math.min(12, Math.max(1, Math.ceil(-Math.log10(Math.min(value, 1 - value))) - 1));
  const scale = 10 ** digits;
  const cut = Math.floor(value * 100 * scale + 1e-6) / scale;
  return `${Number(cut.toFixed(digits))} %`;
}

// A latency as people write it: "12 ms".
export function formatBrief(us) {
  if (typeof us !== "number") return formatUs(us);
  const [value, unit] = us < 1e3 ? [us, "µs"] : us < 1e6 ? [us / 1e3, "ms"] : [us / 1e6, "s"];
  return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)} ${unit}`;
}

// The links of a fault, with arrows that no line begins with.
export function formatLinks(text) {
  return String(text).replaceAll("<->", "\u00a0↔ ").replaceAll("->", "\u00a0→ ");
}

export function formatRatio(value) {
  return value === null || value === undefined ? "unknowable" : Number(value.toPrecision(6)).toString();
}

export function formatBytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) { value /= 1024; power += 1; }
  return `${value.toFixed(power && value < 10 ? 1 : 0)} ${units[power]}`;
}

export function formatAge(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

// The last moment that a date can have.
const LAST_US = 8.64e18;

export function formatTime(us) {
  return us && Math.abs(us) <= LAST_US ? new Date(us / 1000).toISOString().replace("T", " ").slice(0, 19) : UNKNOWN;
}

// The time of day with microseconds, as reports write it.
export function formatClock(us) {
  if (!(Math.abs(us) <= LAST_US)) return UNKNOWN;
  const fraction = String(Math.floor(us % 1e6)).padStart(6, "0");
  return `${new Date(us / 1000).toISOString().slice(11, 19)}.${fraction}`;
}

// Any JSON value as text: names and values, without brackets. Times of day for "..._us".
export function describeValue(value, name = "") {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number" && name.endsWith("_us") && value > 1e15) return formatClock(value);
  if (Array.isArray(value)) return value.length ? value.map((each) => describeValue(each, name)).join("; ") : "none";
  if (typeof value !== "object") return String(value);
  const known = Object.entries(value).filter(([, each]) => each !== null && each !== "");
  return known.map(([key, each]) => `${key}${typeof each === "object" ? ":" : ""} ${describeValue(each, key)}`).join(", ") || "none";
}

export function plural(count, word, words = `${word}s`) {
  return `${formatCount(count)} ${count === 1 ? word : words}`;
}
