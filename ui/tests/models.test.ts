import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fitShown, readFits } from '../src/logic/models.ts';

const [able, small, gone] = readFits({
  nodes: [
    { node: 'able', fits: true },
    { node: 'small', fits: false, outcome: 'refused', reason: '4 MiB available' },
    { node: 'gone', fits: false, outcome: 'unusable', reason: 'no heartbeat' },
  ],
}) as [ReturnType<typeof readFits>[0], ReturnType<typeof readFits>[0], ReturnType<typeof readFits>[0]];
const WELL = { word: 'healthy', well: true };

test('a model of a known size fits or does not, with the reason', () => {
  assert.deepEqual(fitShown(able, true, false, WELL), { tone: 'ok', word: 'fits', reason: '' });
  assert.deepEqual(fitShown(small, true, false, WELL), { tone: 'idle', word: 'does not fit now', reason: '4 MiB available' });
  assert.equal(fitShown({ ...small, waits: true }, true, false, WELL).word, 'busy now');
});

test('of a model whose size is not known nothing is said to fit, and nothing to be too small', () => {
  const open = { ...able, fits: false, outcome: 'unknown', reason: 'size not known yet: the hub has no such file' };
  for (const one of [able, open]) assert.deepEqual(fitShown(one, false, false, WELL), { tone: 'idle', word: 'not known', reason: '' });
  assert.deepEqual(fitShown(small, false, false, WELL), { tone: 'idle', word: 'not known', reason: '4 MiB available' });
});

test('a machine that is not well is said to be so, and a loaded model to be loaded', () => {
  assert.equal(fitShown(gone, false, false, { word: 'offline', well: false }).word, 'offline');
  assert.equal(fitShown(gone, true, true, WELL).word, 'loaded there');
});
