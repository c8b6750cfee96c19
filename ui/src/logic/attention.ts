/** What needs a person, as the frontend has decided it: problems first. Pure. */
import type { Attention } from '../api/messages';
import type { Entities } from '../live/state';
import { address } from './route.svelte';
import type { Tone } from './tones';

export function attention(entities: Entities): Attention[] {
  return [...entities.attention.values()].sort((a, b) => rank(a) - rank(b) || a.message.localeCompare(b.message));
}

export interface AttentionGroup {
  /** The first, which is shown. */
  item: Attention;
  /** Further ones of the same: what has failed again and again. */
  others: readonly Attention[];
}

/** Failed operations of one model or backend stand together. */
export function grouped(items: readonly Attention[]): AttentionGroup[] {
  const groups = new Map<string, Attention[]>();
  for (const item of items) {
    const key = item.code === 'operation_failed' ? `${item.code}/${item.entity_name}` : item.id;
    groups.set(key, [...(groups.get(key) ?? []), item]);
  }
  return [...groups.values()].map(([item, ...others]) => ({ item: item!, others }));
}

function rank(item: Attention): number {
  return item.level === 'problem' ? 0 : 1;
}

export function levelOf(item: Attention): { tone: Tone; word: string } {
  return item.level === 'problem' ? { tone: 'bad', word: 'problem' } : { tone: 'warn', word: 'attention' };
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
