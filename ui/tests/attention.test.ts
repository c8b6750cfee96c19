import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Attention } from '../src/api/messages.ts';
import type { Entities } from '../src/live/state.ts';
import { attention, grouped, messageOf, othersLine } from '../src/logic/attention.ts';

const item = (told: Partial<Attention>): Attention => ({ level: 'problem', entity: 'node', entity_id: told.id ?? '', ...told }) as Attention;
const away = (name: string, why = 'no heartbeat'): Attention => item({ id: name, code: 'node_offline', entity_name: name, message: `${name} is offline: ${why}` });
const waits = item({ id: 'new', code: 'node_pending', level: 'warning', entity_name: 'new', message: 'new is pending', action: { label: 'Approve', method: 'POST', path: '/' } as never });

test('who waits for a word stands first, then problems', () => {
  const low = item({ id: 'low', level: 'warning', code: 'disk_low', message: 'a disk' });
  const all = { attention: new Map([low, away('a'), waits].map((one) => [one.id, one])) } as unknown as Entities;
  assert.deepEqual(attention(all).map((one) => one.id), ['new', 'a', 'low']);
});

test('machines with the same trouble stand together, and those with another apart', () => {
  const groups = grouped([away('a'), away('b'), away('c', 'its disk has failed'), waits, { ...waits, id: 'newer' }]);
  assert.deepEqual(groups.map((one) => one.item.id), ['a', 'c', 'new', 'newer']);
  assert.equal(othersLine(groups[0]!), 'and so is b');
  assert.equal(othersLine(groups[1]!), '');
});

test('what has a button needs no command', () => {
  const message = 'new is pending: waiting for approval: remuda nodes approve new; no heartbeat for 20 s';
  assert.equal(messageOf({ ...waits, message }), 'new is pending: waiting for approval; no heartbeat for 20 s');
  assert.equal(messageOf({ ...away('a'), message }), message);
});

test('failures of one thing are counted', () => {
  const failed = (id: string): Attention => item({ id, entity: 'operation', code: 'operation_failed', entity_name: 'parrot', message: 'it failed' });
  assert.equal(othersLine(grouped([failed('1'), failed('2')])[0]!), 'and 1 earlier failure of it');
});
