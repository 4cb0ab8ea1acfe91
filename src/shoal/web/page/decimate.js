// Fewer points for a chart than it has data: at most two rows for each column of pixels. Pure.

// `columns` are [times, values…], times ascending. Only what is drawn between `from` and `to` is
// kept, with one row on each side. In each column of pixels every series keeps its least and its
// greatest value, in their order, so the drawn lines cover the same pixels; a gap stays a gap if it
// fills a column.
export function decimate(columns, from, to, width) {
  const times = columns[0];
  const first = Math.max(0, findPlace(times, from) - 1);
  const last = Math.min(times.length, findPlace(times, to) + 2);
  const count = last - first;
  const buckets = Math.max(1, Math.floor(width));
  if (count <= 2 * buckets) return first === 0 && last === times.length ? columns : columns.map((column) => column.slice(first, last));
  const edges = edgesOf(times, first, last, buckets);
  const kept = [];
  for (let edge = 0; edge + 1 < edges.length; edge += 1) {
    kept.push(times[edges[edge]]);
    if (edges[edge + 1] - edges[edge] > 1) kept.push(times[edges[edge + 1] - 1]);
  }
  return [kept, ...columns.slice(1).map((values) => extremes(values, edges))];
}

// Where each column of pixels begins; columns without a point are left out.
function edgesOf(times, first, last, buckets) {
  const [low, high] = [times[first], times[last - 1]];
  const scale = buckets / (high - low || 1);
  const edges = [first];
  let current = 0;
  for (let place = first + 1; place < last; place += 1) {
    const bucket = Math.min(buckets - 1, Math.floor((times[place] - low) * scale));
    if (bucket !== current) { edges.push(place); current = bucket; }
  }
  edges.push(last);
  return edges;
}

function extremes(values, edges) {
  const kept = [];
  for (let edge = 0; edge + 1 < edges.length; edge += 1) {
    let [low, high] = [-1, -1];
    for (let place = edges[edge]; place < edges[edge + 1]; place += 1) {
      const value = values[place];
      if (value === null || value === undefined) continue;
      if (low < 0 || value < values[low]) low = place;
      if (high < 0 || value > values[high]) high = place;
    }
    kept.push(low < 0 ? null : values[Math.min(low, high)]);
    if (edges[edge + 1] - edges[edge] > 1) kept.push(low < 0 ? null : values[Math.max(low, high)]);
  }
  return kept;
}

// The first place whose time is not below this one.
function findPlace(times, time) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}
