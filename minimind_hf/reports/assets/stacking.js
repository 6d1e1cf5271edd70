// SPDX-License-Identifier: Apache-2.0
// Values that add up: those above 0 are stacked upwards, those below 0 downwards.
"use strict";

// Of each line, where its part above 0 and its part below 0 start and end at each place; where the value has the other
// sign, a part has no height.
function stacked(lines) {
  const ends = { above: new Map(), below: new Map() };
  const part = ({ x, y }, side, limit) => {
    const start = x.map((at) => ends[side].get(at) ?? 0);
    const end = start.map((value, place) => value + limit(y[place], 0));
    x.forEach((at, place) => ends[side].set(at, end[place]));
    return { start, end, isEmpty: y.every((value) => limit(value, 0) === 0) };
  };
  return lines.map((line) => ({ above: part(line, "above", Math.max), below: part(line, "below", Math.min) }));
}
