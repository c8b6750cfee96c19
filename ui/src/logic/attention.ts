/** What needs a person, as the frontend has decided it: machines that wait for a word of theirs, then problems. Pure. */
import type { Attention } from '../api/messages';
import type { Entities } from '../live/state';
import { count, list } from './format';
import { address } from './route.svelte';
import type { Tone } from './tones';

export function attention(entities: Entities): Attention[] {
  return [...entities.attention.values()].sort((a, b) => rank(a) - rank(b) || a.message.localeCompare(b.message));
}

export interface AttentionGroup {
  /** The first, which is shown. */
  item: Attention;
  /** Further ones of the same: what has failed again and again, or other machines with the same trouble. */
  others: readonly Attention[];
}

/** Failed operations of one model or backend stand together, and machines that are unwell for the same reason. */
export function grouped(items: readonly Attention[]): AttentionGroup[] {
  const groups = new Map<string, Attention[]>();
  for (const item of items) {
    const key = item.code === 'operation_failed' ? `${item.code}/${item.entity_name}` : sameTrouble(item) || item.id;
    groups.set(key, [...(groups.get(key) ?? []), item]);
  }
  return [...groups.values()].map(([item, ...others]) => ({ item: item!, others }));
}

/** Of a machine whose trouble has no button: what is said of it, without its name. */
function sameTrouble(item: Attention): string {
  if (item.entity !== 'node' || item.action || item.code.startsWith('disk_') || !item.entity_name || !item.message.startsWith(`${item.entity_name} `)) return '';
  return `${item.code}/${item.message.slice(item.entity_name.length)}`;
}

/** How the others of a group are told of. */
export function othersLine({ item, others }: AttentionGroup): string {
  if (!others.length) return '';
  if (item.code === 'operation_failed') return `and ${count(others.length, 'earlier failure')} of it`;
  return `and so ${others.length === 1 ? 'is' : 'are'} ${list(others.map((one) => one.entity_name ?? ''), 3)}`;
}

const WAITING = new Set(['node_pending', 'name_claimed']);

function rank(item: Attention): number {
  return WAITING.has(item.code) ? 0 : item.level === 'problem' ? 1 : 2;
}

export function levelOf(item: Attention): { tone: Tone; word: string } {
  return item.level === 'problem' ? { tone: 'bad', word: 'problem' } : { tone: 'warn', word: 'attention' };
}

/** Without the command for what has a button beside it. */
export function messageOf(item: Attention): string {
  return item.action ? item.message.replace(/: remuda nodes (approve|resume) [^\s;]+/, '') : item.message;
}

/** Where to read more, or where it is solved. */
export function placeOf(item: Attention): string {
  const name = item.entity_name || item.entity_id;
  switch (item.entity) {
    case 'node':
      return address('machines', name, item.code.startsWith('disk_') ? 'files' : '');
    case 'operation':
      return address('operations', item.entity_id);
    case 'model':
      return address('models', name);
    case 'backend':
      return address('backends', '', '', { find: name });
  }
  return address('fleet');
}
