// A long table shows its first rows; a button under it shows them all, and again only the first.

import { byId, setText } from "./dom.js";
import { count } from "./format.js";

//: As in the style sheet, which hides the others.
const isNarrow = matchMedia("(max-width: 700px)");

export function shorter(tableBody, buttonId, numShown, numNarrow = 6) {
  const button = byId(buttonId);
  let isWhole = false;
  let items = [];
  button.addEventListener("click", () => {
    isWhole = !isWhole;
    button.setAttribute("aria-expanded", isWhole);
    look(items);
  });
  function look(all) {
    items = all;
    button.hidden = all.length <= (isNarrow.matches ? numNarrow : numShown);
    setText(button, isWhole ? "Show fewer" : `Show all ${count(all.length)}`);
    byId(tableBody).classList.toggle("whole", isWhole);
  }
  return look;
}
