package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/semantic"
)

func TestTheCommandLineIsRead(t *testing.T) {
	got, err := parse([]string{"-texts", "t.json", "-callers", "1, 32", "-seconds", "2.5", "-precision",
		"int8", "-threads", "1", "a", "b"})
	want := settings{texts: "t.json", callers: []int{1, 32}, seconds: 2.5, threads: 1,
		precision: semantic.PrecisionINT8, folders: []string{"a", "b"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for args, want := range map[string]string{
		"-texts t.json":                           "usage: load",
		"model":                                   "usage: load",
		"-texts t.json -callers 1,none model":     `-callers has "none"`,
		"-texts t.json -callers 0 model":          `-callers has "0"`,
		"-texts t.json -precision fp8 model":      `-precision is "fp8"`,
		"-texts t.json -count 1 -seconds 1 model": "not both",
	} {
		if _, err := parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestACountGoesThroughTheListInTurn(t *testing.T) {
	got := request(settings{count: 7}, 2, 3)
	if want := []int{0, 1, 2, 0, 1, 2, 0}; got.Callers != 2 || !reflect.DeepEqual(got.Order, want) {
		t.Errorf("got %+v", got)
	}
	if got = request(settings{}, 1, 3); len(got.Order) != 3 {
		t.Errorf("got %+v", got)
	}
}
