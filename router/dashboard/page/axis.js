// The axes of the plots: round numbers at which they end, and what stands beside them. Pure.

//: Steps of two seconds that a plot is wide: one minute, two, five, ten.
const WIDTHS = [30, 60, 150, 300];
//: First digits of the upper ends, chosen so that their halves are round too.
const ENDS = [1, 2, 4, 6, 10];

export const widthOf = (numSteps) => WIDTHS.find((width) => width >= numSteps) ?? WIDTHS.at(-1);

// The least round number that is no less than ``value``, and at least ``least``.
export function endOf(value, least) {
  const high = Math.max(value, least);
  const power = 10 ** Math.floor(Math.log10(high));
  return power * ENDS.find((end) => end * power >= high * 0.9999);
}

// How long ago the left end, the middle and the right end are.
export function timesOf(width, stepS) {
  const said = (seconds) => (seconds < 60 ? `−${seconds} s` : `−${(seconds / 60).toLocaleString("en")} min`);
  return [said(width * stepS), said((width * stepS) / 2), "now"];
}
