// What an address chose, checked against what there is: what is unknown falls back, with a sentence. Pure.

const LONGEST = 40;

function quoteText(text) {
  return `“${text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text}”`;
}

// One of `known`; `otherwise` if the address names another. `what` and `fallback` are for the sentence.
export function chooseOne(value, known, { what, fallback, otherwise = "" }) {
  if (!value || known.includes(value)) return { value: value || otherwise, notes: [] };
  return { value: otherwise, notes: [`The address names the ${what} ${quoteText(value)}, which is not known here; ${fallback}.`] };
}

// A stretch of time, in seconds from the start of `length` seconds; null for an end that was not chosen.
export function chooseTime({ from, to }, length) {
  const [first, last] = [readSeconds(from, 0), readSeconds(to, length)];
  const isValid = first !== null && last !== null && first < last && first < length && last > 0;
  if (isValid) return { from: from ? first : null, to: to ? last : null, notes: [] };
  return { from: null, to: null, notes: [`The address names a time (${[from, to].map((text) => quoteText(text || "")).join(" to ")}) that is not in this data; all of it is shown.`] };
}

function readSeconds(text, otherwise) {
  if (text === undefined || text === "") return otherwise;
  return /^\d{1,9}(\.\d{1,6})?$/.test(text) ? Number(text) : null;
}

// A moment of a replay; null if none was chosen.
export function chooseMoment(text, length) {
  if (!text) return { at: null, notes: [] };
  const at = readSeconds(text, 0);
  if (at !== null && at <= length) return { at, notes: [] };
  return { at: null, notes: [`The address names the moment ${quoteText(text)}, which is not in this run; its end is shown.`] };
}

// The name of a message; a sentence for each part that is missing or is not a number.
export function checkMessage({ topic, producer, lane, sequence }) {
  const notes = [];
  for (const [name, value] of Object.entries({ topic, producer })) if (!value) notes.push(`The address names no ${name}.`);
  for (const [name, value] of Object.entries({ lane, sequence })) {
    if (!/^\d{1,19}$/.test(value || "")) notes.push(value ? `The address names the ${name} ${quoteText(value)}, which is not a whole number.` : `The address names no ${name}.`);
  }
  return notes;
}
