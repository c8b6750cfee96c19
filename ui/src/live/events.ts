/** Server-sent events, parsed as they come. Pure. */

export interface ServerEvent {
  name: string;
  id: string;
  data: string;
  /** Lines for people, which programs of others skip. */
  comment: string;
}

/** Keeps the unfinished rest between two pieces. */
export class EventParser {
  #rest = '';

  feed(piece: string): ServerEvent[] {
    const blocks = (this.#rest + piece).replaceAll('\r\n', '\n').split('\n\n');
    this.#rest = blocks.pop() ?? '';
    return blocks.map(parsed).filter((event) => event !== null);
  }
}

function parsed(block: string): ServerEvent | null {
  const event: ServerEvent = { name: 'message', id: '', data: '', comment: '' };
  const data: string[] = [];
  for (const line of block.split('\n')) {
    const colon = line.indexOf(':');
    if (colon === 0) {
      event.comment = line.slice(1).trim();
      continue;
    }
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'data') data.push(value);
    else if (field === 'event') event.name = value;
    else if (field === 'id') event.id = value;
  }
  event.data = data.join('\n');
  return data.length || event.name !== 'message' || event.comment ? event : null;
}
