//nolint:gosec // test data: any bytes will do, and files of the working directory
package bench

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tokenText is a text to encode.
type tokenText struct {
	name string
	text []byte
}

const (
	tokenTextBytes = 100_000
	naturalTexts   = 3 // the first ones are what people write
)

// tokenTexts returns 100 KB of each kind. Markdown and code are this checkout's.
func tokenTexts() ([]tokenText, error) {
	rng := rand.New(rand.NewPCG(5, 1))
	markdown, err := checkoutText(".md")
	if err != nil {
		return nil, err
	}
	code, err := checkoutText(".go")
	if err != nil {
		return nil, err
	}
	noise := make([]byte, tokenTextBytes)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	return []tokenText{
		{"markdown", markdown},
		{"code", code},
		{"chinese", chineseText(rng)},
		{"random", cutText(bytes.ToValidUTF8(noise, []byte("\ufffd")))},
		{"base64", []byte(base64.StdEncoding.EncodeToString(noise)[:tokenTextBytes])},
		{"run", bytes.Repeat([]byte("a"), tokenTextBytes)},
	}, nil
}

// cutText cuts to size at a character.
func cutText(text []byte) []byte {
	if len(text) <= tokenTextBytes {
		return text
	}
	return bytes.ToValidUTF8(text[:tokenTextBytes], nil)
}

// checkoutText joins files of the working directory until there is enough.
func checkoutText(ext string) ([]byte, error) {
	var names []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != ".":
			return filepath.SkipDir
		case filepath.Ext(path) == ext:
			names = append(names, path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("texts: %w", err)
	}
	slices.Sort(names)
	var text []byte
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("texts: %w", err)
		}
		text = append(text, bytes.ToValidUTF8(raw, nil)...)
		if len(text) >= tokenTextBytes {
			return cutText(text), nil
		}
	}
	if len(text) == 0 {
		return nil, fmt.Errorf("texts: no %s files here: run it in a checkout", ext)
	}
	return cutText(bytes.Repeat(text, tokenTextBytes/len(text)+1)), nil
}

// chineseText strings clauses together at random, so that no long stretch repeats.
func chineseText(rng *rand.Rand) []byte {
	clauses := strings.Fields(`路由器先查看每个节点缓存了哪些前缀 然后估算剩余的预填充时间 如果两个节点得分相同 就选择负载较轻的一个
		清晨的街道上几乎没有行人 只有卖早点的摊位冒着热气 他一边走一边回想昨晚的对话 觉得自己说得太急了
		实验结果表明新的方法更加稳定 但是在数据很少的时候优势并不明显 我们还需要更多的样本来验证这个结论
		这座城市的历史可以追溯到两千多年以前 河流改道之后港口逐渐衰落 后来铁路又带来了新的繁荣
		请用简短的语言总结下面这段文字 并且列出三个最重要的观点 不要添加原文没有的内容
		医生建议他每天散步半个小时 少吃油腻的食物 注意按时休息 三个月以后再来复查
		编译器会在优化阶段删除没有用到的变量 不过调试信息仍然保留在文件里 所以程序的体积并没有明显变小
		市场对这份财报的反应相当冷淡 分析师认为下半年的增长可能放缓 投资者正在等待央行的决定
		孩子们在操场上追逐打闹 老师站在树荫下和家长聊天 远处传来下课的铃声
		量子计算机利用叠加态同时处理许多可能性 可是噪声会很快破坏这种状态 纠错因此成为关键的难题`)
	marks := []string{"，", "，", "，", "。", "。\n", "；", "！", "？"}
	var text []byte
	for len(text) < tokenTextBytes {
		text = append(text, clauses[rng.IntN(len(clauses))]...)
		text = append(text, marks[rng.IntN(len(marks))]...)
	}
	return cutText(text)
}

// chat is a rendered conversation that grows.
type chat struct {
	rng   *rand.Rand
	words []string
	text  []byte
	turn  []byte
}

// newChat returns 100 KB of 50 messages.
func newChat() *chat {
	c := &chat{rng: rand.New(rand.NewPCG(7, 7))}
	c.words = strings.Fields(`the of and to in is that for it as was with be by on not he this are or his from at which but have an had
		they you were their one all we can her has there been if more when will would who so no latency request worker cache prefix
		tokens router stream engine error timeout Kubernetes func return err context "status": 429, (see below) config.yaml 3.14 2026`)
	for i := range 50 {
		c.text = c.message(c.text, i, tokenTextBytes/50)
	}
	return c
}

func (c *chat) message(dst []byte, i, size int) []byte {
	role := "user"
	if i%2 == 1 {
		role = "assistant"
	}
	dst = append(dst, "<|im_start|>"+role+"\n"...)
	for end := len(dst) + size; len(dst) < end; {
		dst = append(dst, c.words[c.rng.IntN(len(c.words))]...)
		if c.rng.IntN(12) == 0 {
			dst = append(dst, ".\n"...)
		} else {
			dst = append(dst, ' ')
		}
	}
	return append(dst, "<|im_end|>\n"...)
}

// next returns the conversation with one KB never seen at its end.
func (c *chat) next() []byte {
	c.turn = c.message(append(c.turn[:0], c.text...), 0, 1000)
	return c.turn
}
