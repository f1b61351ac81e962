package recall

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

func TestMemory(t *testing.T) {
	const most = 3
	m := New[int](most)
	for i := range 10 {
		key := fmt.Sprint(i)
		m.Put(key, &i)
		if n := m.Get(key); n == nil || *n != i {
			t.Errorf("Get(%s) = %v after Put", key, n)
		}
		if len(m.records) > most {
			t.Fatalf("%d records, want %d at most", len(m.records), most)
		}
	}
	if n := m.Take("9"); n == nil || *n != 9 {
		t.Errorf("Take = %v", n)
	}
	if n := m.Get("9"); n != nil {
		t.Errorf("Get = %v after Take", *n)
	}
	m.Put("8", nil)
	if n := m.Get("8"); n != nil {
		t.Errorf("Get = %v after Put of nil", *n)
	}
}

// The names of entities come from messages. So the bytes of a Memory are bounded, too.
func TestLongKeys(t *testing.T) {
	m := New[int](3)
	for i := range 3 {
		m.Put(fmt.Sprint(i), &i)
	}
	m.Put(strings.Repeat("x", 1<<20), new(int))
	total := 0
	for key := range m.records {
		total += len(key)
	}
	if total != 3 {
		t.Errorf("%d records with %d bytes of keys, want the 3 that were there", len(m.records), total)
	}
}

// A key may be a part of a message, which the Memory does not keep.
func TestKeysOfMessages(t *testing.T) {
	m := New[int](10)
	message := strings.Repeat("shop;", 1000)
	m.Put(message[:4], new(int))
	for key := range m.records {
		if unsafe.StringData(key) == unsafe.StringData(message) {
			t.Error("the key is a part of the message")
		}
	}
}

// The clock runs with the server's, behind by the quickest answer.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		at := func(want int64) {
			t.Helper()
			if ms, known := c.Now(); !known || ms != want {
				t.Errorf("Now = %d, %t, want %d", ms, known, want)
			}
		}
		if _, known := c.Now(); known {
			t.Error("a new clock knows the time")
		}
		c.Heard(5_000_501, false)
		at(5000)
		time.Sleep(time.Second)
		at(6000)
		c.Heard(5_900_000, false) // a slower answer
		at(6000)
		c.Heard(6_003_501, false) // a quicker one
		at(6003)
		c.Heard(1_000_501, true) // the clock was set back
		at(1000)
	})
}
