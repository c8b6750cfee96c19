/** The markdown that models write, as a tree; components render it, so that no markup of a model's is ever
 * more than text. Pure. */

export type Inline =
  | { kind: 'text' | 'code'; text: string }
  | { kind: 'strong' | 'em' | 'del'; children: Inline[] }
  | { kind: 'link'; to: string; children: Inline[] };

export type Block =
  | { kind: 'paragraph'; children: Inline[] }
  | { kind: 'heading'; level: number; children: Inline[] }
  | { kind: 'code'; language: string; text: string }
  | { kind: 'quote'; blocks: Block[] }
  | { kind: 'list'; ordered: boolean; start: number; items: Block[][] }
  | { kind: 'table'; head: Inline[][]; rows: Inline[][][] }
  | { kind: 'rule' };

const FENCE = /^ {0,3}(```+|~~~+)\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^( {0,8})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/;
const DEPTH_MAX = 8;

export function parse(text: string): Block[] {
  return blocks(text.replaceAll('\r\n', '\n').split('\n'), 0);
}

function blocks(lines: string[], depth: number): Block[] {
  const found: Block[] = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at]!;
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      const end = fenceEnd(lines, at + 1, fence[1]!);
      found.push({ kind: 'code', language: fence[2] ?? '', text: lines.slice(at + 1, end).join('\n') });
      at = end + 1;
    } else if (heading) {
      found.push({ kind: 'heading', level: heading[1]!.length, children: inline(heading[2] ?? '') });
      at += 1;
    } else if (RULE.test(line)) {
      found.push({ kind: 'rule' });
      at += 1;
    } else if (/^ {0,3}>/.test(line) && depth < DEPTH_MAX) {
      const end = endOf(lines, at, (one) => /^ {0,3}>/.test(one));
      found.push({ kind: 'quote', blocks: blocks(lines.slice(at, end).map((one) => one.replace(/^ {0,3}> ?/, '')), depth + 1) });
      at = end;
    } else if (ITEM.test(line) && depth < DEPTH_MAX) {
      const end = listEnd(lines, at);
      found.push(listOf(lines.slice(at, end), depth));
      at = end;
    } else if (line.includes('|') && TABLE_LINE.test(lines[at + 1] ?? '')) {
      const end = endOf(lines, at + 2, (one) => one.includes('|') && one.trim() !== '');
      found.push({ kind: 'table', head: cells(line), rows: lines.slice(at + 2, end).map(cells) });
      at = end;
    } else {
      const end = Math.max(at + 1, endOf(lines, at, (one) => one.trim() !== '' && !FENCE.test(one) && !HEADING.test(one) && !ITEM.test(one)));
      found.push({ kind: 'paragraph', children: inline(lines.slice(at, end).join('\n')) });
      at = end;
    }
  }
  return found;
}

function endOf(lines: string[], from: number, more: (line: string) => boolean): number {
  let at = from;
  while (at < lines.length && more(lines[at]!)) at += 1;
  return at;
}

/** A block of code that is still being written goes on to the end. */
function fenceEnd(lines: string[], from: number, fence: string): number {
  return endOf(lines, from, (line) => !(line.trim().startsWith(fence) && line.trim().replaceAll(fence[0]!, '') === ''));
}

/** Another list begins where bullets follow on numbers, or numbers on bullets. */
function listEnd(lines: string[], from: number): number {
  const first = ITEM.exec(lines[from]!)!;
  const same = (item: RegExpExecArray): boolean => item[1]!.length > first[1]!.length + 1 || numbered(item) === numbered(first);
  return endOf(lines, from, (line) => {
    const item = ITEM.exec(line);
    return item ? same(item) : /^\s{2,}\S/.test(line) || !line.trim();
  });
}

function numbered(item: RegExpExecArray): boolean {
  return /\d/.test(item[2]!);
}

function listOf(lines: string[], depth: number): Block {
  const first = ITEM.exec(lines[0]!)!;
  const indent = first[1]!.length;
  const items: string[][] = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1]!.length <= indent + 1) items.push([item[3]!]);
    else items.at(-1)!.push(line.replace(new RegExp(`^ {0,${indent + 2}}`), ''));
  }
  const ordered = numbered(first);
  return { kind: 'list', ordered, start: ordered ? parseInt(first[2]!, 10) : 1, items: items.map((one) => blocks(one, depth + 1)) };
}

function cells(line: string): Inline[][] {
  return line
    .trim()
    .replace(/^\||\|$/g, '')
    .split('|')
    .map((cell) => inline(cell.trim()));
}

const MARKS =
  /\\(?<escaped>[!-/:-@[-`{-~])|(?<code>`+)(?<inside>[^]*?[^`])\k<code>(?!`)|\*\*(?<strong>\S(?:[^]*?\S)??)\*\*|~~(?<del>\S(?:[^]*?\S)??)~~|\*(?<em>[^\s*](?:[^*]*[^\s*])?)\*|(?<![\p{L}\d_])_(?<under>[^\s_](?:[^_]*[^\s_])?)_(?![\p{L}\d_])|!?\[(?<label>[^\]\n]{1,500})\]\((?<to>[^()\s]{1,2000})\)|(?<bare>https?:\/\/[^\s<>()[\]"'`*]{1,2000}[^\s<>()[\]"'`*.,;:!?])/u;

export function inline(text: string, depth = 0): Inline[] {
  const found: Inline[] = [];
  let rest = text;
  while (rest) {
    const match = depth < DEPTH_MAX ? MARKS.exec(rest) : null;
    if (!match) break;
    if (match.index) found.push({ kind: 'text', text: rest.slice(0, match.index) });
    found.push(marked(match, depth));
    rest = rest.slice(match.index + match[0].length);
  }
  if (rest) found.push({ kind: 'text', text: rest });
  return found;
}

/** An address within a link is no second link. */
function unlinked(parts: Inline[]): Inline[] {
  return parts.flatMap((part): Inline[] => {
    if (part.kind === 'link') return part.children;
    return 'children' in part ? [{ ...part, children: unlinked(part.children) }] : [part];
  });
}

function marked(match: RegExpExecArray, depth: number): Inline {
  const { escaped, inside, strong, del, em, under, label, to, bare } = match.groups ?? {};
  if (escaped !== undefined) return { kind: 'text', text: escaped };
  if (bare !== undefined) return { kind: 'link', to: bare, children: [{ kind: 'text', text: bare }] };
  if (inside !== undefined) return { kind: 'code', text: inside };
  if (strong !== undefined) return { kind: 'strong', children: inline(strong, depth + 1) };
  if (del !== undefined) return { kind: 'del', children: inline(del, depth + 1) };
  if (label !== undefined && to !== undefined) {
    // Only addresses of the web: anything else a model could write stays text.
    if (!/^https?:\/\//i.test(to)) return { kind: 'text', text: match[0] };
    return { kind: 'link', to, children: unlinked(inline(label, depth + 1)) };
  }
  return { kind: 'em', children: inline(em ?? under ?? '', depth + 1) };
}
