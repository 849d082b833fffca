// Shows what a problem is about. A part that can show a kind of thing registers here, so other parts need not know it.

const ways = new Map();

export function canShow(kind, show) {
  ways.set(kind, show);
}

export function jump(kind, id) {
  ways.get(kind)(id);
}
