/** The address of the view, so that each can be sent to a colleague. Some are paths of the API as well: the
 * frontend tells a browser that wants a page from a program. */

export interface Place {
  page: string;
  /** What follows the page: the name of a machine or a model. */
  name: string;
  tab: string;
  query: URLSearchParams;
}

export function parsePlace(to: string): Place {
  const [path = '', query = ''] = to.replace(/^\//, '').split('?', 2);
  const [page = '', name = '', tab = ''] = path.split('/').map(decoded);
  return { page: page || 'fleet', name, tab, query: new URLSearchParams(query) };
}

/** Browsers take `..` for the folder above, escaped or not. */
function encoded(part: string): string {
  return /^~*\.{1,2}$/.test(part) ? `~${part}` : encodeURIComponent(part);
}

function decoded(part: string): string {
  if (/^~+\.{1,2}$/.test(part)) return part.slice(1);
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function address(page: string, name = '', tab = '', query: Record<string, string> = {}): string {
  const path = [page, name, tab].filter((part, index) => part || index === 0).map(encoded);
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `/${path.join('/')}${asked ? `?${asked}` : ''}`;
}

/** What the frontend serves beside views. */
const NOT_VIEWS = /^\/(docs|openapi\.json|api|v1|metrics|healthz|readyz|assets)(\/|$)/;

class Route {
  place = $state.raw<Place>(parsePlace(location.pathname + location.search));

  #shown = location.pathname + location.search;
  #guard: (() => Promise<boolean>) | null = null;

  start(): void {
    window.addEventListener('popstate', () => this.#back());
    document.addEventListener('click', (event) => this.#click(event));
  }

  /** Before the view is left, `ask` decides; what is answered takes that back. */
  hold(ask: () => Promise<boolean>): () => void {
    this.#guard = ask;
    return () => {
      if (this.#guard === ask) this.#guard = null;
    };
  }

  go(to: string): void {
    const guard = this.#guard;
    if (guard) void guard().then((leave) => leave && this.#leave(to));
    else this.#leave(to);
  }

  #leave(to: string): void {
    this.#guard = null;
    history.pushState(null, '', to);
    this.#look();
  }

  /** The browser has gone back already: where something is held, it is brought here again, and asked. */
  #back(): void {
    if (!this.#guard) return this.#look();
    const to = location.pathname + location.search;
    history.pushState(null, '', this.#shown);
    this.go(to);
  }

  /** The same view, filtered otherwise: no new entry in the browser's history. */
  filter(query: Record<string, string>): void {
    const { page, name, tab } = this.place;
    const to = address(page, name, tab, { ...Object.fromEntries(this.place.query), ...query });
    history.replaceState(null, '', to);
    this.#shown = to;
    this.place = parsePlace(to);
  }

  #look(): void {
    const before = this.place;
    this.#shown = location.pathname + location.search;
    this.place = parsePlace(this.#shown);
    if (before.page !== this.place.page || before.name !== this.place.name) window.scrollTo(0, 0);
  }

  /** Links to views change the page without loading it anew; all else is the browser's. */
  #click(event: MouseEvent): void {
    if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element).closest('a');
    if (!link || link.target || link.origin !== location.origin || NOT_VIEWS.test(link.pathname)) return;
    event.preventDefault();
    this.go(link.pathname + link.search);
  }
}

export const route = new Route();
