// To what a problem is about. Who can show something says so here, so that nobody has to know who can.

const ways = new Map();

export function canShow(kind, show) {
  ways.set(kind, show);
}

export function jump(kind, id) {
  ways.get(kind)(id);
}
